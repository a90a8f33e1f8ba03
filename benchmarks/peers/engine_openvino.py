"""OpenVINO GenAI's continuous-batching pipeline.

Reads MODELS/<model>-ov-<fmt>/ (made by make_openvino.sh).  Prefix caching on.
--opt words: i8kv (leave the KV cache at the plug-in's default precision)
"""

import time

from common import Engine, Result, main


class OpenVINO(Engine):
    name = "openvino-genai"
    formats = ("bf16", "q8_0", "q4_0")

    def version(self):
        import openvino_genai

        return openvino_genai.__version__

    def load(self):
        import numpy as np
        import openvino as ov
        import openvino_genai as g

        self.np, self.ov, self.g = np, ov, g
        path = f"{self.args.models}/{self.model}-ov-{self.fmt}"
        sc = g.SchedulerConfig()
        sc.cache_size = self.args.kv_gib
        sc.max_num_seqs = self.max_seqs
        sc.max_num_batched_tokens = 512
        sc.enable_prefix_caching = True
        props = {"INFERENCE_NUM_THREADS": self.threads}
        if self.fmt == "bf16":
            props["INFERENCE_PRECISION_HINT"] = "bf16"
            if "i8kv" not in self.args.opt:
                props["KV_CACHE_PRECISION"] = "bf16"
        self.p = g.ContinuousBatchingPipeline(path, sc, "CPU", props)
        self.n = 0

    def run(self, reqs):
        res, handles = [], []
        for q in reqs:
            c = self.g.GenerationConfig()
            c.max_new_tokens = q.max_new
            c.min_new_tokens = q.max_new
            c.ignore_eos = True
            c.do_sample = False
            ids = self.ov.Tensor(self.np.array([q.ids], dtype=self.np.int64))
            handles.append(self.p.add_request(self.n, ids, c))
            self.n += 1
            res.append(Result())
        live = set(range(len(reqs)))
        while self.p.has_non_finished_requests():
            self.p.step()
            now = time.monotonic()
            for i in list(live):
                h = handles[i]
                while h.can_read():
                    for o in h.read().values():
                        res[i].add(list(o.generated_ids), now)
                if res[i].n_out >= reqs[i].max_new:
                    live.discard(i)
        return res


if __name__ == "__main__":
    main(OpenVINO)
