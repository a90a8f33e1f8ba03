"""Shared driver of the peer benchmarks.

An engine file defines a subclass of Engine and calls main(Cls).  The driver
owns the workloads, the clock and the JSON, so that every engine answers the
same questions about the same token ids.

Clock: time.monotonic() is one clock for all processes of a Linux machine, so
the runner passes its own reading in BENCH_T0 and start-up time is exact.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from abc import ABC, abstractmethod

T_IMPORT = time.monotonic()
T0 = float(os.environ.get("BENCH_T0", T_IMPORT))


class Request:
    __slots__ = ("ids", "max_new")

    def __init__(self, ids, max_new):
        self.ids, self.max_new = ids, max_new


class Result:
    """Times are time.monotonic() readings; None where an engine can't tell."""

    __slots__ = ("ids", "n_out", "t_first", "t_last")

    def __init__(self):
        self.n_out, self.t_first, self.t_last, self.ids = 0, None, None, []

    def add(self, tokens, now=None):
        now = time.monotonic() if now is None else now
        if not tokens:
            return
        if self.t_first is None:
            self.t_first = now
        self.t_last = now
        self.n_out += len(tokens)
        self.ids.extend(tokens)


class Engine(ABC):
    """Override load() and run(); the rest is optional."""

    name = "?"
    #: formats this engine can serve, the first is the default
    formats = ("bf16",)
    note = ""

    def __init__(self, args):
        self.args = args
        self.model = args.model
        self.fmt = args.fmt
        self.threads = args.threads
        self.max_len = args.max_len
        self.max_seqs = args.max_seqs

    def hf_dir(self):
        return os.path.join(self.args.models, self.model)

    def gguf(self):
        return os.path.join(self.args.models, f"{self.model}-{self.fmt.upper()}.gguf")

    def version(self):
        return ""

    @abstractmethod
    def load(self):
        """Load the model, ready to answer."""

    @abstractmethod
    def run(self, requests):
        """Serve all requests at once, greedy, ignoring end-of-sequence.

        Returns one Result per request, in order.
        """

    def close(self):  # noqa: B027  most have nothing to do
        pass


# ------------------------------------------------------------------ workloads
LO, HI = 1000, 40000  # ids that are ordinary tokens in all models used


def rand_ids(rng, n):
    return [rng.randrange(LO, HI) for _ in range(n)]


def wl_single(seed):
    return [Request(rand_ids(random.Random(seed), 128), 128)]


def wl_prefill(seed):
    return [Request(rand_ids(random.Random(seed), 1024), 1)]


def wl_throughput(seed):
    """Same lengths every time, fresh ids per seed (no stale prefix hits)."""
    lens = random.Random(1234)
    rng = random.Random(seed)
    return [Request(rand_ids(rng, lens.randint(32, 256)), lens.randint(64, 128)) for _ in range(64)]


def wl_prefix(seed):
    rng = random.Random(seed)
    shared = rand_ids(rng, 512)
    return [Request(shared + rand_ids(rng, 32), 32) for _ in range(32)]


def pct(xs, p):
    xs = sorted(xs)
    if not xs:
        return None
    k = (len(xs) - 1) * p / 100.0
    lo = int(k)
    hi = min(lo + 1, len(xs) - 1)
    return xs[lo] + (xs[hi] - xs[lo]) * (k - lo)


def measure(engine, reqs):
    t0 = time.monotonic()
    res = engine.run(reqs)
    wall = time.monotonic() - t0
    for q, r in zip(reqs, res, strict=False):
        if r.n_out != q.max_new:
            print("WARNING: asked for %d tokens, got %d" % (q.max_new, r.n_out), file=sys.stderr)
    n_in = sum(len(q.ids) for q in reqs)
    n_out = sum(r.n_out for r in res)
    ttft = [r.t_first - t0 for r in res if r.t_first is not None]
    tpot = [
        (r.t_last - r.t_first) / (r.n_out - 1)
        for r in res
        if r.n_out > 1 and r.t_first is not None and r.t_last > r.t_first
    ]
    m = {"wall_s": wall, "n_in": n_in, "n_out": n_out, "out_tps": n_out / wall, "total_tps": (n_in + n_out) / wall}
    if ttft:
        m.update(ttft_p50_ms=1e3 * pct(ttft, 50), ttft_p99_ms=1e3 * pct(ttft, 99))
        m["prefill_tps"] = n_in / max(ttft)
    if tpot:
        m.update(tpot_p50_ms=1e3 * pct(tpot, 50), tpot_p99_ms=1e3 * pct(tpot, 99))
    return m


TESTS = {"single": wl_single, "prefill": wl_prefill, "throughput": wl_throughput, "prefix": wl_prefix}


def tree_peak_mb():
    """Sum of the peak resident sizes of this process and its descendants."""
    kids = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                with open(f"/proc/{p}/stat") as f:
                    ppid = int(f.read().rsplit(")", 1)[1].split()[1])
                kids.setdefault(ppid, []).append(int(p))
            except OSError:
                pass
    todo, total = [os.getpid()], 0
    while todo:
        pid = todo.pop()
        todo += kids.get(pid, [])
        try:
            with open("/proc/%d/status" % pid) as f:
                for line in f:
                    if line.startswith("VmHWM:"):
                        total += int(line.split()[1])
        except OSError:
            pass
    return total / 1024.0


def main(cls):
    ap = argparse.ArgumentParser()
    ap.add_argument("--models", default=os.environ.get("BENCH_MODELS"))
    ap.add_argument("--model", required=True)
    ap.add_argument("--fmt", default=cls.formats[0])
    ap.add_argument("--tests", default="single,prefill,throughput,prefix")
    ap.add_argument("--runs", type=int, default=1)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--max-len", type=int, default=2048)
    ap.add_argument("--max-seqs", type=int, default=64)
    ap.add_argument("--kv-gib", type=int, default=4)
    ap.add_argument("--opt", default="", help="engine-specific options")
    ap.add_argument("--dump-ids", action="store_true", help="keep the ids of the single-stream test in the JSON")
    ap.add_argument("--out")
    args = ap.parse_args()
    eng = cls(args)
    if args.fmt not in cls.formats:
        ap.error("{} serves {}".format(cls.name, ",".join(cls.formats)))
    doc = {
        "engine": cls.name,
        "model": args.model,
        "fmt": args.fmt,
        "threads": args.threads,
        "opt": args.opt,
        "note": cls.note,
        "tests": {},
    }
    eng.load()
    doc["load_s"] = time.monotonic() - T0
    r = eng.run([Request(rand_ids(random.Random(7), 16), 1)])[0]
    doc["startup_s"] = (r.t_first or time.monotonic()) - T0
    doc["version"] = eng.version()
    eng.run([Request(rand_ids(random.Random(8), 64), 8)])  # warm-up
    for t in [t for t in args.tests.split(",") if t]:
        rows = []
        for k in range(args.runs):
            try:
                rows.append(measure(eng, TESTS[t](1000 * args.seed + k)))
            except Exception as e:  # keep what was measured before
                doc.setdefault("errors", {})[t] = repr(e)[:300]
                print(f"ERROR in {t}: {e!r}", file=sys.stderr)
                break
        if rows:
            doc["tests"][t] = rows
    if args.dump_ids:
        doc["ids"] = eng.run(wl_single(0))[0].ids
    doc["peak_rss_mb"] = tree_peak_mb()
    eng.close()
    txt = json.dumps(doc)
    if args.out:
        with open(args.out, "w") as f:
            f.write(txt)
    print("RESULT " + txt, flush=True)


def median_of(rows):
    keys = {k for r in rows for k in r}
    return {k: statistics.median([r[k] for r in rows if k in r]) for k in keys}
