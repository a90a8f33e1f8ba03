#!/usr/bin/env python3
"""What this machine can do at most: read bandwidth and matrix products.

Needs gcc and, for the products, torch.  Prints JSON and a few lines to read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

C = r"""
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
  size_t n = (size_t)atof(argv[1]); int th = atoi(argv[2]);
  omp_set_num_threads(th);
  char *p = aligned_alloc(1 << 21, n);
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < (long)(n >> 12); i++) memset(p + (i << 12), (int)i, 4096);
  double best = 0;
  for (int rep = 0; rep < 9; rep++) {
    double t = omp_get_wtime(); long long sum = 0;
    #pragma omp parallel reduction(+:sum)
    {
      int id = omp_get_thread_num(); size_t part = n / th; char *q = p + id * part;
      __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
      for (size_t i = 0; i < part; i += 256) {
        a = _mm512_xor_si512(a, _mm512_load_si512(q + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(q + i + 64));
        c = _mm512_xor_si512(c, _mm512_load_si512(q + i + 128));
        d = _mm512_xor_si512(d, _mm512_load_si512(q + i + 192));
      }
      a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
      sum += _mm512_reduce_add_epi64(a);
    }
    t = omp_get_wtime() - t;
    double g = n / t / 1e9; if (g > best) best = g;
    if (sum == 42) puts("");
  }
  printf("%.2f\n", best); return 0;
}
"""


PEAK = r"""
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#define REP12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DF(i) __m512 a##i = _mm512_setzero_ps();
#define DI(i) __m512i a##i = _mm512_setzero_si512();
#define KEEP(i) __asm__ volatile("" :: "v"(a##i));
#define RUN(NAME, DECL, OP, FLOPS) do { double best = 0; \
  for (int rep = 0; rep < 5; rep++) { double t = omp_get_wtime(); long n = 20000000; \
    _Pragma("omp parallel") { REP12(DECL) \
      for (long k = 0; k < n; k++) { REP12(OP) } REP12(KEEP) } \
    t = omp_get_wtime() - t; double g = (double)FLOPS * 12 * n * omp_get_max_threads() / t / 1e9; \
    if (g > best) best = g; } printf("%s %.0f\n", NAME, best); } while (0)
#define F32(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(a##i) : "v"(x));
#define BF(i) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(a##i) : "v"(x));
#define I8(i) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(a##i) : "v"(y));
int main(int c, char **v) { omp_set_num_threads(atoi(v[1]));
  __m512 x = _mm512_setzero_ps(); __m512i y = _mm512_setzero_si512();
  RUN("f32_GFLOPS", DF, F32, 32);
  RUN("bf16_GFLOPS", DF, BF, 64);
  RUN("int8_GOPS", DI, I8, 128);
  return 0; }
"""


def register_peaks(threads):
    """Multiply-add rates with all operands in registers."""
    with tempfile.TemporaryDirectory() as d:
        src, exe = os.path.join(d, "p.c"), os.path.join(d, "p")
        open(src, "w").write(PEAK)
        subprocess.check_call(["gcc", "-O2", "-march=native", "-fopenmp", src, "-o", exe])
        out = subprocess.check_output([exe, str(threads)], text=True)
        return {"peak_" + a: float(b) for a, b in (l.split() for l in out.splitlines())}


def read_bandwidth(threads, size):
    with tempfile.TemporaryDirectory() as d:
        src, exe = os.path.join(d, "r.c"), os.path.join(d, "r")
        open(src, "w").write(C)
        subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", src, "-o", exe])
        return float(subprocess.check_output([exe, str(size), str(threads)]))


def best(fn, n=7):
    fn()
    t = []
    for _ in range(n):
        a = time.perf_counter()
        fn()
        t.append(time.perf_counter() - a)
    return min(t)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--out")
    a = ap.parse_args()
    doc = {"threads": a.threads}
    for th in sorted({1, a.threads}):
        doc["read_GBs_2GB_%dthr" % th] = read_bandwidth(th, 2 << 30)
        doc["read_GBs_16MB_%dthr" % th] = read_bandwidth(th, 16 << 20)
    doc.update(register_peaks(a.threads))
    try:
        import torch
    except ImportError:
        torch = None
    if torch:
        torch.set_num_threads(a.threads)
        doc["torch"] = torch.__version__
        doc["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        for M in (2048, 64, 1):
            n = 2048
            fl = 2.0 * M * n * n
            for name, dt in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                x = torch.randn(M, n, dtype=dt)
                w = torch.randn(n, n, dtype=dt)
                with torch.inference_mode():
                    t = best(lambda: torch.nn.functional.linear(x, w), 20 if M < 2048 else 7)
                doc["%s_M%d_GFLOPS" % (name, M)] = fl / t / 1e9
            xi = torch.randint(-127, 127, (max(M, 17), n), dtype=torch.int8)
            wi = torch.randint(-127, 127, (n, n), dtype=torch.int8)
            try:
                t = best(lambda: torch._int_mm(xi, wi.t()), 7)
                doc["int8_int_mm_M%d_GOPS" % max(M, 17)] = 2.0 * max(M, 17) * n * n / t / 1e9
            except Exception as e:
                doc["int8_error"] = repr(e)[:200]
            # quantised linear (u8 x s8) through the fbgemm/onednn packed path
            try:
                torch.backends.quantized.engine = "onednn"
                wq = torch.quantize_per_tensor(torch.randn(n, n), 0.05, 0, torch.qint8)
                pk = torch.ops.quantized.linear_prepack(wq, None)
                xq = torch.quantize_per_tensor(torch.randn(M, n), 0.05, 128, torch.quint8)
                t = best(lambda: torch.ops.quantized.linear(xq, pk, 0.05, 128), 10)
                doc["int8_qlinear_M%d_GOPS" % M] = fl / t / 1e9
            except Exception as e:
                doc["int8_q_error"] = repr(e)[:200]
    print(json.dumps(doc, indent=1))
    if a.out:
        json.dump(doc, open(a.out, "w"), indent=1)


if __name__ == "__main__":
    sys.exit(main())
