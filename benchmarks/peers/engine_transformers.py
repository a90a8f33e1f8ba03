"""transformers: generate() for one request, padded batches or its own
continuous batching for many (--opt cb)."""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from common import Engine, Result, main


class Transformers(Engine):
    name = "transformers"
    formats = ("bf16", "f32")
    batch = 32

    def version(self):
        import torch
        import transformers

        return f"{transformers.__version__}, torch {torch.__version__}"

    def load(self):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        torch.set_num_threads(self.threads)
        dt = torch.bfloat16 if self.fmt == "bf16" else torch.float32
        self.m = AutoModelForCausalLM.from_pretrained(self.hf_dir(), dtype=dt)
        self.m.eval()
        self.m.generation_config.eos_token_id = None

    def _padded(self, reqs):
        torch = self.torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        n = max(len(q.ids) for q in reqs)
        ids = torch.tensor([[0] * (n - len(q.ids)) + q.ids for q in reqs])
        mask = torch.tensor([[0] * (n - len(q.ids)) + [1] * len(q.ids) for q in reqs])
        res = [Result() for _ in reqs]

        class Clock(StoppingCriteria):
            def __call__(self, input_ids, scores, **kw):
                now = time.monotonic()
                for row, q, r in zip(input_ids[:, -1].tolist(), reqs, res, strict=False):
                    if r.n_out < q.max_new:
                        r.add([row], now)
                return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        with torch.inference_mode():
            self.m.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max(q.max_new for q in reqs),
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([Clock()]),
            )
        return res

    def _continuous(self, reqs):
        from transformers import GenerationConfig

        g = GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max(q.max_new for q in reqs)
        )
        res = [Result() for _ in reqs]
        mgr = self.m.init_continuous_batching(generation_config=g)
        mgr.start()
        try:
            for i, q in enumerate(reqs):
                mgr.add_request(q.ids, request_id=str(i), max_new_tokens=q.max_new, streaming=True)
            left = len(reqs)
            while left:
                o = mgr.get_result(timeout=60)
                if o is None:
                    raise RuntimeError("no output for 60 s")
                if o.error:
                    raise RuntimeError(o.error)
                r = res[int(o.request_id)]
                r.add(o.generated_tokens[r.n_out :])
                if o.is_finished():
                    left -= 1
        finally:
            mgr.stop(block=True)
        return res

    def run(self, reqs):
        if len(reqs) > 1 and "cb" in self.args.opt:
            return self._continuous(reqs)
        out = [None] * len(reqs)
        # sort by length so that a padded batch wastes little
        order = sorted(range(len(reqs)), key=lambda i: len(reqs[i].ids))
        for k in range(0, len(order), self.batch):
            part = order[k : k + self.batch]
            for i, r in zip(part, self._padded([reqs[i] for i in part]), strict=False):
                out[i] = r
        return out


if __name__ == "__main__":
    main(Transformers)
