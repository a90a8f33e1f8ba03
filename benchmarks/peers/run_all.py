#!/usr/bin/env python3
"""Run engines round by round (interleaved) and print a Markdown table.

  run_all.py --venvs DIR --models DIR --results DIR \
      --job vllm:SmolLM2-135M-Instruct:bf16 --job llamacpp:SmolLM2-135M-Instruct:q8_0

A job is ENGINE:MODEL:FMT[:OPT].  ENGINE names engine_ENGINE.py here and the
venv DIR/ENGINE (change with --venv-of ENGINE=NAME).  Each round starts one
fresh process per job, so start-up is measured as often as the rest.
"""

import argparse
import collections
import glob
import json
import os
import statistics
import subprocess
import sys
import time

from ceilings import read_bandwidth
from common import median_of

MANAGES_THREADS = {"vllm"}  # sets its own OpenMP threads and binding

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = {"transformers": "hf", "onnxruntime": "ort", "ctranslate2": "ct2"}


def slug(s):
    return "".join(c if c.isalnum() or c in ".-=" else "_" for c in s)


def run_job(a, job, rnd):
    parts = job.split(":", 3)
    eng, model, fmt = parts[:3]
    opt = parts[3] if len(parts) > 3 else ""
    py = os.path.join(a.venvs, VENV.get(eng, eng), "bin", "python")
    base = os.path.join(a.results, "%s__r%d" % (slug(job), rnd))
    cmd = [
        py,
        os.path.join(HERE, f"engine_{eng}.py"),
        "--models",
        a.models,
        "--model",
        model,
        "--fmt",
        fmt,
        "--tests",
        a.tests,
        "--runs",
        str(a.runs),
        "--seed",
        str(rnd + 1),
        "--threads",
        str(a.threads),
        "--opt",
        opt,
        "--out",
        base + ".json",
    ]
    if a.dump_ids:
        cmd.append("--dump-ids")
    env = dict(os.environ)
    if eng not in MANAGES_THREADS:
        env["OMP_NUM_THREADS"] = str(a.threads)
    # the venv's bin first: some engines look for their own tools by name
    env["PATH"] = os.path.dirname(py) + os.pathsep + env.get("PATH", "")
    # The read bandwidth of a shared machine moves by a factor of two for
    # minutes at a time, and decode speed with it: note it beside the results.
    probe = [] if a.no_probe else [read_bandwidth(a.threads, 1 << 30)]
    t0 = time.monotonic()
    env["BENCH_T0"] = repr(t0)
    with open(base + ".log", "w") as log:
        try:
            rc = subprocess.run(cmd, stdout=log, stderr=subprocess.STDOUT, env=env, timeout=a.timeout).returncode
        except subprocess.TimeoutExpired:
            rc = "timeout"
    wall = time.monotonic() - t0
    if probe and os.path.exists(base + ".json"):
        probe.append(read_bandwidth(a.threads, 1 << 30))
        with open(base + ".json") as f:
            d = json.load(f)
        d["probe_GBs"] = probe
        with open(base + ".json", "w") as f:
            json.dump(d, f)
    print("%-60s round %d rc=%s %.0f s, read GB/s %s" % (job, rnd, rc, wall, probe), flush=True)


def table(results):
    groups = collections.OrderedDict()
    for f in sorted(glob.glob(os.path.join(results, "*__r*.json"))):
        d = json.load(open(f))
        groups.setdefault((d["model"], d["fmt"], d["engine"], d["opt"]), []).append(d)
    head = [
        "engine",
        "fmt",
        "start s",
        "TTFT128 ms",
        "TPOT ms",
        "tok/s",
        "prefill1024 tok/s",
        "batch64 out tok/s",
        "batch64 total tok/s",
        "prefix32 out tok/s",
        "prefix32 TTFT p50 ms",
        "peak RSS MB",
        "read GB/s",
        "n",
    ]
    out = []
    for model in sorted({k[0] for k in groups}):
        out += ["", "### " + model, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for k, docs in sorted(groups.items(), key=lambda x: (x[0][1], x[0][2])):
            if k[0] != model:
                continue
            m = {}
            for t in ("single", "prefill", "throughput", "prefix"):
                rows = [r for d in docs for r in d["tests"].get(t, [])]
                m[t] = median_of(rows) if rows else {}

            def g(t, key, f="%.1f"):
                return f % m[t][key] if key in m[t] else "-"

            tp = m["single"].get("tpot_p50_ms")
            row = [
                k[2] + (f" ({k[3]})" if k[3] else ""),
                k[1],
                "{:.1f}".format(statistics.median(d["startup_s"] for d in docs)),
                g("single", "ttft_p50_ms"),
                g("single", "tpot_p50_ms", "%.2f"),
                "%.1f" % (1e3 / tp) if tp else "-",
                g("prefill", "prefill_tps", "%.0f"),
                g("throughput", "out_tps"),
                g("throughput", "total_tps", "%.0f"),
                g("prefix", "out_tps"),
                g("prefix", "ttft_p50_ms", "%.0f"),
                "{:.0f}".format(max(d["peak_rss_mb"] for d in docs)),
                "/".join(f"{p:.0f}" for d in docs for p in d.get("probe_GBs", [])) or "-",
                str(len(docs)),
            ]
            out.append("| " + " | ".join(row) + " |")
    return "\n".join(out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    env = os.environ.get
    ap.add_argument("--venvs", default=env("BENCH_VENVS"))
    ap.add_argument("--models", default=env("BENCH_MODELS"))
    ap.add_argument("--results", default=env("BENCH_RESULTS", "results"))
    ap.add_argument("--job", action="append", default=[])
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--first-round", type=int, default=0)
    ap.add_argument("--runs", type=int, default=1, help="runs inside a round")
    ap.add_argument("--tests", default="single,prefill,throughput,prefix")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--timeout", type=float, default=600)
    ap.add_argument("--dump-ids", action="store_true")
    ap.add_argument("--venv-of", action="append", default=[], metavar="ENGINE=NAME")
    ap.add_argument("--no-probe", action="store_true", help="skip the read-bandwidth probe around each job (needs gcc)")
    ap.add_argument("--table-only", action="store_true")
    a = ap.parse_args()
    for x in a.venv_of:
        k, v = x.split("=")
        VENV[k] = v
    os.makedirs(a.results, exist_ok=True)
    if not a.table_only:
        for r in range(a.first_round, a.first_round + a.rounds):
            for j in a.job:
                run_job(a, j, r)
    print(table(a.results))


if __name__ == "__main__":
    sys.exit(main())
