"""llama.cpp in process, through llama-cpp-python's low-level batch API.

The loop below is a small continuous batcher: every step decodes one token
for each running sequence and fills the rest of the batch with prompt tokens.
A prefix that all requests share is computed once and shared between
sequences (llama_memory_seq_cp).

--opt words: unified (one KV buffer for all sequences; the default gives each
sequence its own, which is much faster with many sequences), batch=N (tokens
per step), fa (flash attention always on)
"""

import ctypes
import time

from common import Engine, Result, main


class LlamaCpp(Engine):
    name = "llama.cpp"
    formats = ("bf16", "q8_0", "q4_0", "q4_1")
    n_batch = 512

    def version(self):
        import llama_cpp

        return "llama-cpp-python " + llama_cpp.__version__

    def load(self):
        import llama_cpp as L
        import numpy as np

        self.L, self.np = L, np
        opts = self.args.opt.split()
        for o in opts:
            if o.startswith("batch="):
                self.n_batch = int(o[6:])
        self.quiet = L.llama_log_callback(lambda lvl, txt, ud: None)
        L.llama_log_set(self.quiet, ctypes.c_void_p(0))
        L.llama_backend_init()
        mp = L.llama_model_default_params()
        self.model_p = L.llama_model_load_from_file(self.gguf().encode(), mp)
        if not self.model_p:
            raise RuntimeError("cannot load " + self.gguf())
        cp = L.llama_context_default_params()
        cp.n_seq_max = self.max_seqs + 1
        uni = "unified" in opts
        cp.n_ctx = 32768 if uni else self.max_len * (self.max_seqs + 1)
        cp.n_batch = self.n_batch
        cp.n_ubatch = self.n_batch
        cp.n_threads = cp.n_threads_batch = self.threads
        cp.kv_unified = uni
        if "fa" in opts:
            cp.flash_attn_type = 1
        self.ctx = L.llama_init_from_model(self.model_p, cp)
        self.mem = L.llama_get_memory(self.ctx)
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model_p))
        self.batch = L.llama_batch_init(self.n_batch, 0, 1)

    def _argmax(self, i):
        p = self.L.llama_get_logits_ith(self.ctx, i)
        return int(self.np.ctypeslib.as_array(p, shape=(self.n_vocab,)).argmax())

    def _decode(self, items):
        """items: (token, position, sequence, wants logits)"""
        b = self.batch
        b.n_tokens = len(items)
        for i, (t, p, s, w) in enumerate(items):
            b.token[i] = t
            b.pos[i] = p
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = s
            b.logits[i] = w
        rc = self.L.llama_decode(self.ctx, b)
        if rc:
            raise RuntimeError("llama_decode returned %d" % rc)

    def run(self, reqs):
        L = self.L
        L.llama_memory_clear(self.mem, False)
        res = [Result() for _ in reqs]
        common = 0
        if len(reqs) > 1:
            a, b = min(q.ids for q in reqs), max(q.ids for q in reqs)
            while common < min(len(a), len(b)) - 1 and a[common] == b[common]:
                common += 1
        if common >= 32:
            base = self.max_seqs
            for k in range(0, common, self.n_batch):
                part = reqs[0].ids[k : min(k + self.n_batch, common)]
                self._decode([(t, k + j, base, False) for j, t in enumerate(part)])
        else:
            common = 0
        waiting = list(range(len(reqs)))[::-1]
        free = list(range(self.max_seqs))[::-1]
        running = {}  # request -> [sequence, next position, last token]
        filling = []  # [request, sequence, done]
        while waiting or running or filling:
            items, wants = [], []
            for r, st in running.items():
                wants.append((len(items), r))
                items.append((st[2], st[1], st[0], True))
                st[1] += 1
            while len(items) < self.n_batch and (filling or (waiting and free)):
                if not filling:
                    r, s = waiting.pop(), free.pop()
                    if common:
                        L.llama_memory_seq_cp(self.mem, self.max_seqs, s, -1, -1)
                    filling.append([r, s, common])
                f = filling[0]
                ids = reqs[f[0]].ids
                take = min(self.n_batch - len(items), len(ids) - f[2])
                for j in range(f[2], f[2] + take):
                    items.append((ids[j], j, f[1], j == len(ids) - 1))
                f[2] += take
                if f[2] == len(ids):
                    wants.append((len(items) - 1, f[0]))
                    running[f[0]] = [f[1], len(ids), None]
                    filling.pop(0)
            self._decode(items)
            got = [(r, self._argmax(i)) for i, r in wants]
            now = time.monotonic()
            for r, t in got:
                res[r].add([t], now)
                st = running[r]
                st[2] = t
                if res[r].n_out >= reqs[r].max_new:
                    L.llama_memory_seq_rm(self.mem, st[0], -1, -1)
                    free.append(st[0])
                    del running[r]
        return res


if __name__ == "__main__":
    main(LlamaCpp)
