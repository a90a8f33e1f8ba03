"""Not a test: the demo model answers several requests on more threads than cores, without torch, for ThreadSanitizer.

    python -m tests.sanitizers.threads DIR

ThreadSanitizer watches the thread team: a kernel that reads what another thread may still write ends the run.
"""

import sys
from pathlib import Path

from tests.sanitizers.plugin import use_libraries

CHUNK, OUTPUTS = 48, 6


def main(directory):
    use_libraries(directory)
    # Imported late: the modules below look for libraries when they are loaded.
    from octavo import LLM, SamplingParams
    from octavo.kernels.cpu.library import supported_isas

    for isa in supported_isas():
        for threads in (2, 5):
            options = {"max_model_len": 128, "num_gpu_blocks_override": 64, "weight_cache": False, "isa": isa}
            with LLM(None, threads=threads, max_num_batched_tokens=CHUNK, max_num_seqs=4, **options) as llm:
                params = [
                    SamplingParams(temperature=0.0, max_tokens=OUTPUTS, logprobs=3, prompt_logprobs=1),
                    SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=OUTPUTS, repetition_penalty=1.1),
                    SamplingParams(temperature=0.0, max_tokens=OUTPUTS),
                ]
                prompts = [{"prompt_token_ids": list(range(100, 100 + count))} for count in (60, 3, 17)]
                outputs = llm.generate(prompts, params, use_tqdm=False)
            tokens = [output.outputs[0].token_ids for output in outputs]
            print(f"{isa}, {threads} threads: {tokens}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
