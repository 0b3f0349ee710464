"""Full, sparse or linear: ten ways to mix, each one configuration for every question (exercise 1.14, chapter §1.6.5).

One model for all: two layers, heads 32 wide, rotary positions. A query looks at 16 keys (the sparse kinds; in LSH at
its bucket), or a head keeps a memory of 32 x 32 numbers (the linear ones), as much as 16 keys and values hold. What is
trained is what is timed and counted, by kernels that cost as little as they promise; but for LSH, see SORTED.
"""

import torch

from lab.engine.device import device
from lab.measure.timing import seconds_a_call
from lab.models import ModelConfig, Transformer
from lab.models.gpt import AttentionFn, attend
from lab.models.kernels import bigbird_blocks, block_sparse, sorted_lsh
from lab.recipes.byte_model import byte_model, table_losses
from lab.recipes.timed_calls import saved_bytes
from lab.tasks.recall import Pairs
from lab.tasks.task import accuracy
from lab.training import TrainConfig, cross_entropy, fit, moved

KEYS, HEAD = 16, 32  # keys that a query of a sparse kind sees; width of a head
SOLVED = 0.95  # of the answers in recall


class BlockBigBird(AttentionFn, kind="bigbird-blocks"):
    """BigBird in blocks of four, causal: a query's own block, the one before, the first and a random one. Zaheer 2020.

    The length is a multiple of four, at most the configured context; a last block may be short while decoding, where
    one query gathers its keys.
    """

    def __init__(self, config, *, size=KEYS // 4):
        super().__init__(config)
        self.size = size
        self.register_buffer("blocks", bigbird_blocks(-(-config.context // size)), persistent=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        n = k.shape[2]
        if mask is not None or bias is not None:
            raise ValueError("bigbird-blocks chooses its pairs: it takes no mask, padding or bias")
        if q.shape[2] == 1:
            row = self.blocks[(n - 1) // self.size]
            at = (row[row >= 0, None] * self.size + torch.arange(self.size, device=row.device)).flatten()
            return attend(q, k[:, :, at[at < n]], v[:, :, at[at < n]])
        return block_sparse(q, k, v, self.blocks[: n // self.size], self.size)


class SortedLsh(AttentionFn, kind="sorted-lsh"):
    """LSH attention by sorting: in each of two rounds a query sees its bucket within two chunks. Kitaev 2020.

    The length is the configured context, a multiple of the chunk. No query sees a later key, but where chunks are cut
    depends on later tokens too.
    """

    def __init__(self, config, *, chunk=KEYS // 4, rounds=2):
        super().__init__(config)
        self.chunk = chunk
        turns = torch.randn(rounds, config.d_head, max(1, config.context // chunk // 2))
        self.register_buffer("rotations", turns, persistent=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        if mask is not None or bias is not None:
            raise ValueError("sorted-lsh chooses its pairs: it takes no mask, padding or bias")
        return sorted_lsh(q, k, v, self.rotations, self.chunk)


ARMS = {  # fields of ModelConfig by which they differ
    "softmax": {},
    "window": {"score": {"kind": "local", "size": KEYS}},
    "bigbird": {"score": "bigbird-blocks"},
    "lsh": {"score": {"kind": "lsh", "buckets": 16, "rounds": 2}},
    "linformer": {"score": {"kind": "linformer", "rank": KEYS}, "mask": "none"},
    "performer": {"mixer": {"kind": "performer", "features": HEAD}},
    "linear": {"mixer": "linear"},
    "delta": {"mixer": "delta"},
    "gated delta": {"mixer": "gated-delta"},
    "hybrid": {"mixer": ["linear", "attention"]},
}
SORTED = {"score": "sorted-lsh"}  # how LSH is timed; where sorting cuts depends on the future, so no arm learns with it
WHOLE = ("linformer",)  # mix a whole sequence: they see the future, and cannot write token by token
UNTIMED = ("linformer", "lsh")  # no way to decode is built here
TASKS = ("code", "recall")


def fields(arm, d_model):
    """Fields of ModelConfig of an arm; ValueError for one that is none."""
    if arm not in ARMS:
        raise ValueError(f"unknown arm {arm!r}; choose from {', '.join(ARMS)}")
    return {"d_model": d_model, "n_heads": d_model // HEAD, "n_layers": 2} | ARMS[arm]


def learned(seed, task, arm, learning_rate, steps, pairs, context, d_model, batch, corpus="", order=0):
    """One arm learns one task: a row for each recorded step, with nats an answer, accuracy, and the marks.

    code     next byte; `margin` is by how much the loss lies below that of a trigram table of the same bytes
    recall   `pairs` of key and value, then every key is asked; `margin` is accuracy over .95
    """
    if task == "code":
        sizes = fields(arm, d_model) | {"context": context, "batch": batch, "learning_rate": learning_rate}
        config, source, schedule = byte_model(steps, corpus=corpus, **sizes)
        marks = table_losses(source, schedule, seed + order)
    else:
        source, marks = Pairs(pairs=pairs, keys=2 * pairs), {}
        sizes = {"vocabulary": source.vocabulary, "context": source.length, "d_out": source.d_out}
        start = {"initialization": {"kind": "fan-in", "embedding": 0.3}}
        config = ModelConfig(**fields(arm, d_model) | sizes | start)
        schedule = TrainConfig(steps=steps, batch=batch, learning_rate=learning_rate)
    asked = moved(source.validation(512 if task == "code" else 256), device())

    def tested(model):
        logits = model(asked[0])
        found = {"nats": cross_entropy(logits, asked[1]).item(), "accuracy": accuracy(logits, asked[1])}
        return found | {"margin": marks["trigram"] - found["nats"] if marks else found["accuracy"] - SOLVED}

    model = Transformer(config, seed=seed).to(device())
    test = {"evaluate": torch.no_grad()(tested), "mark": ("margin", ">=", 0.0), "every": max(1, steps // 12)}
    run, history = fit(model, source, schedule, seed=seed + order, **test)
    return [run | marks | row for row in history[["step", "nats", "accuracy", "margin"]].to_dict("records")]


# Costs of the same models


def model_of(arm, n, d_model):
    """The model of bytes of an arm for n positions."""
    start = {"vocabulary": 256, "context": n, "initialization": {"kind": "fan-in", "embedding": 0.3}}
    by_cost = SORTED if arm == "lsh" else {}
    return Transformer(ModelConfig(**fields(arm, d_model) | start | by_cost)).to(device())


def bytes_read(n):
    """(inputs, targets) of n bytes drawn at random."""
    tokens = torch.randint(256, (1, n + 1), generator=torch.Generator().manual_seed(0)).to(device())
    return tokens[:, :-1], tokens[:, 1:]


def step_call(arm, n, d_model):
    """A call that returns the gradients of the loss on one sequence of n bytes."""
    model, (tokens, targets) = model_of(arm, n, d_model), bytes_read(n)
    return lambda: torch.autograd.grad(cross_entropy(model(tokens), targets), tuple(model.parameters()))


def token_call(arm, n, d_model, batch):
    """A call that reads one more byte in each of `batch` sequences after n earlier ones.

    A window keeps its last 16 keys and no more. ValueError for an arm without a way to decode.
    """
    if arm in UNTIMED:
        raise ValueError(f"{arm} has no way to decode here")
    kept = min(n, KEYS) if arm == "window" else n
    model = model_of("softmax" if arm == "window" else arm, n, d_model).eval()
    caches, new = model.caches(batch, kept), torch.zeros(batch, 1, dtype=torch.long, device=device())
    with torch.no_grad():
        if not any("keys" in cache.tensors for cache in caches):
            model(new, caches=caches)  # the memory is there from the first token on, as large as it will be
        for cache in caches:
            for name in cache.tensors.keys() & {"keys", "values"}:  # pages that were never written are no memory yet
                cache.tensors[name].fill_(0.01)
        if len({"keys" in cache.tensors for cache in caches}) == 2:  # a memory beside a cache: both start with a token
            model(new, caches=caches)

    @torch.no_grad()
    def call():
        for cache in caches:
            cache.length = kept - 1
        return model(new, caches=caches)

    return call


def time_steps(lengths, d_model, repeats):
    """Seconds of a training step of arms, {arm: lengths}; "again" is softmax once more, made anew."""
    calls = {(arm, n): step_call("softmax" if arm == "again" else arm, n, d_model)
             for arm, each in lengths.items() for n in each}  # fmt: skip
    return seconds_a_call(calls, ["arm", "n"], repeats, device=str(device()))


def time_tokens(arms, lengths, d_model, batch, repeats):
    """Seconds in which each of `batch` sequences gets one more token, after n; "again" is softmax once more."""
    calls = {(arm, n): token_call("softmax" if arm == "again" else arm, n, d_model, batch)
             for arm in arms for n in lengths}  # fmt: skip
    return seconds_a_call(calls, ["arm", "n"], repeats, device=str(device()))


def state_bytes(arm, n, d_model):
    """Bytes that an arm keeps of n tokens of one sequence to write the next; None where it cannot."""
    if arm in WHOLE:
        return None
    kept = min(n, KEYS) if arm == "window" else n
    return sum(block.mixer.state_bytes(kept) for block in model_of(arm, max(n, KEYS), d_model).blocks)


def costs(arm, n, d_model):
    """Exact costs at n tokens: bytes kept for the backward pass, bytes of state while decoding, parameters."""
    model, (tokens, targets) = model_of(arm, n, d_model), bytes_read(n)
    saved = saved_bytes(lambda: cross_entropy(model(tokens), targets))
    told = {"saved": saved, "state": state_bytes(arm, n, d_model)}
    return told | {"weights": 4 * sum(p.numel() for p in model.parameters())}
