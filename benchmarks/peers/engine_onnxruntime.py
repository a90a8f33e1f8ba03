"""ONNX Runtime GenAI: Generator for one request, padded batches for many
(--opt engine: its event-driven Engine, where the model allows it).

Reads MODELS/<model>-ort-<fmt>/ (onnxruntime_genai.models.builder).
"""

import time

from common import Engine, Result, main


class ORT(Engine):
    name = "onnxruntime-genai"
    formats = ("int4", "f32")
    batch = 32

    def version(self):
        import onnxruntime_genai as og

        return getattr(og, "__version__", "")

    def load(self):
        import numpy as np
        import onnxruntime_genai as og

        self.og, self.np = og, np
        path = f"{self.args.models}/{self.model}-ort-{self.fmt}"
        cfg = og.Config(path)
        self.m = og.Model(cfg)

    def _padded(self, reqs):
        og, np = self.og, self.np
        n = max(len(q.ids) for q in reqs)
        ids = np.array([[0] * (n - len(q.ids)) + q.ids for q in reqs], dtype=np.int32)
        new = max(q.max_new for q in reqs)
        p = og.GeneratorParams(self.m)
        p.set_search_options(max_length=n + new, min_length=n + new, do_sample=False, batch_size=len(reqs))
        g = og.Generator(self.m, p)
        g.append_tokens(ids)
        res = [Result() for _ in reqs]
        for _ in range(new):
            g.generate_next_token()
            now = time.monotonic()
            for t, q, r in zip(g.get_next_tokens().tolist(), reqs, res, strict=False):
                if r.n_out < q.max_new:
                    r.add([t], now)
        return res

    def run(self, reqs):
        out = [None] * len(reqs)
        order = sorted(range(len(reqs)), key=lambda i: len(reqs[i].ids))
        for k in range(0, len(order), self.batch):
            part = order[k : k + self.batch]
            for i, r in zip(part, self._padded([reqs[i] for i in part]), strict=False):
                out[i] = r
        return out


if __name__ == "__main__":
    main(ORT)
