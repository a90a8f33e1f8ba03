"""CTranslate2's Generator: token batches, no iteration-level scheduling.

Reads MODELS/<model>-ct2-<fmt>/ (ct2-transformers-converter).  Its CPU side has
no bfloat16, so f32 stands in; int8 is its fast path.
"""

import json

from common import Engine, Result, main


class CT2(Engine):
    name = "ctranslate2"
    formats = ("int8", "f32")
    note = "static batches of 32, no continuous batching"
    batch = 32

    def version(self):
        import ctranslate2

        return ctranslate2.__version__

    def load(self):
        import ctranslate2

        path = f"{self.args.models}/{self.model}-ct2-{self.fmt}"
        self.g = ctranslate2.Generator(
            path,
            device="cpu",
            intra_threads=self.threads,
            inter_threads=1,
            compute_type="int8" if self.fmt == "int8" else "float32",
        )
        with open(path + "/vocabulary.json") as f:
            self.vocab = json.load(f)

    def run(self, reqs):
        out = [None] * len(reqs)
        order = sorted(range(len(reqs)), key=lambda i: -len(reqs[i].ids))
        for k in range(0, len(order), self.batch):
            part = order[k : k + self.batch]
            res = [Result() for _ in part]

            def cb(step, res=res, part=part):
                r = res[step.batch_id]
                if r.n_out < reqs[part[step.batch_id]].max_new:
                    r.add([step.token_id])
                return False

            toks = [[self.vocab[t] for t in reqs[i].ids] for i in part]
            self.g.generate_batch(
                toks,
                max_length=max(reqs[i].max_new for i in part),
                min_length=max(reqs[i].max_new for i in part),
                sampling_topk=1,
                beam_size=1,
                end_token=[],
                include_prompt_in_result=False,
                callback=cb,
            )
            for i, r in zip(part, res, strict=False):
                out[i] = r
        return out


if __name__ == "__main__":
    main(CT2)
