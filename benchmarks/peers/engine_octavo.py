"""Octavo, through the engine's submit/receive interface.

--opt words: anything of the form name=value becomes an engine option (for example block_size=32).
"""

import time

from common import Engine, Result, main


class Octavo(Engine):
    name = "octavo"
    formats = ("bf16", "f32", "q8_0", "q4_0", "q4_1")

    def version(self):
        import octavo

        return octavo.__version__

    def load(self):
        from octavo.config.engine import EngineConfig
        from octavo.engine.build import build_engine

        model = self.hf_dir() if self.fmt in ("bf16", "f32") else self.gguf()
        options = dict(word.split("=", 1) for word in self.args.opt.split() if "=" in word)
        config = EngineConfig.from_options(
            model=model,
            skip_tokenizer_init=True,
            dtype="float32" if self.fmt == "f32" else "auto",
            max_model_len=self.max_len,
            max_num_seqs=self.max_seqs,
            threads=self.threads,
            kv_cache_memory_bytes=f"{self.args.kv_gib}GiB",
            **options,
        )
        self.engine = build_engine(config)
        self.client = self.engine.client
        self.n = 0

    def run(self, requests):
        from octavo.flow.request import GenerationRequest, Sampling, Stopping

        results = {}
        for request in requests:
            name = str(self.n)
            self.n += 1
            results[name] = Result()
            self.client.submit(
                GenerationRequest(
                    id=name,
                    prompt_token_ids=tuple(request.ids),
                    sampling=Sampling(temperature=0.0),
                    stopping=Stopping(max_tokens=request.max_new, ignore_eos=True),
                    arrival=time.monotonic(),
                    detokenize=False,
                )
            )
        live = len(requests)
        while live:
            outputs = self.client.receive()
            now = time.monotonic()
            for output in outputs:
                results[output.request_id].add(list(output.token_ids), now)
                live -= output.finish_reason is not None
        return list(results.values())

    def close(self):
        self.client.close()


if __name__ == "__main__":
    main(Octavo)
