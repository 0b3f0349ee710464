"""Next token of real code under byte-pair encoding, as in the tokenizers of large models."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from lab import trace
from lab.tasks.code import unseen
from lab.tasks.corpus import corpus_hash, parts
from lab.tasks.task import Marks, Task

INSTALL = "pip install 'transformer-lab[pieces]'"
WORDS = r" ?[A-Za-z_]+| ?[0-9]+| ?[^\sA-Za-z0-9_]+|\s+"  # no piece crosses the end of a word


@dataclass(frozen=True)
class Pieces(Task):
    """Next piece of the text at `path` (corpus.py), by byte-pair encoding (Sennrich 2016).

    text     return self.norm(x)
    tokens   return |  self | .n | or | m | (x
    targets   self | .n | or | m | (x | )           ids 0..vocabulary-1, the first 256 are bytes

    The merges are learnt on the training files alone. With 256 pieces this is Code. Encoding is
    defined for any bytes, and `decode` inverts it. Raises ValueError for a vocabulary below 256.
    """

    vocabulary: int = 1024
    length: int = 64
    path: str = ""
    holds_out = "a tenth of the files, without windows that other files hold too"

    def __post_init__(self):
        if self.vocabulary < 256:
            raise ValueError(
                f"vocabulary must be at least 256, one per byte value; got {self.vocabulary}"
            )

    @cached_property
    def hash(self):
        """Identifies the text: first 12 hex digits of the sha256 of file names and contents."""
        return corpus_hash(self.path)

    def encode(self, text):
        """The ids of the pieces of `text` (bytes), as a list."""
        return _tokenizer(self.path, self.hash, self.vocabulary).encode(text.decode("latin-1")).ids

    def decode(self, tokens):
        """The bytes of a sequence of ids."""
        return b"".join(self.spellings[token] for token in tokens)

    @cached_property
    def spellings(self):
        """The bytes of each piece, a list.

        It is shorter than the vocabulary if the text has no more pairs to merge.
        """
        tokenizer = _tokenizer(self.path, self.hash, self.vocabulary)
        return [
            tokenizer.id_to_token(i).encode("latin-1") for i in range(tokenizer.get_vocab_size())
        ]

    def nats_per_byte(self, loss, targets):
        """Convert a loss in nats per piece to nats per byte, for comparison with byte models.

        `targets` are the pieces over which the loss is the mean.
        """
        width = torch.tensor([len(spelling) for spelling in self.spellings])
        return loss / width[targets.cpu()].double().mean().item()

    def text(self, held_out=False):
        """Pieces of the training or validation files: int32 (pieces,).

        Raises ValueError if there are too few for a window.
        """
        text = _encoded(self.path, self.hash, self.vocabulary)[held_out]
        if len(text) <= self.length + 1:
            name = "validation" if held_out else "training"
            raise ValueError(
                f"the {name} text of corpus {self.path!r} has {len(text)} pieces, too few for a window"
            )
        return text

    def marks(self):
        """Marks of single pieces of the validation text."""
        share = self.text(held_out=True).bincount().double()
        share /= share.sum()
        return Marks(
            chance=share.max().item(),
            unigram_entropy=-torch.special.xlogy(share, share).sum().item(),
        )

    def batch(self, generator, size):
        """Windows at random positions of the training text."""
        text = self.text()
        return self._windows(
            text, torch.randint(len(text) - self.length, (size,), generator=generator)
        )

    def validation(self, size, seed=0):
        """Validation windows that do not occur in the training text, as in Code."""
        text = self.text(held_out=True)
        return self._windows(
            text, _unseen(self.path, self.hash, self.vocabulary, self.length + 1, size, seed)
        )

    def _windows(self, text, starts):
        windows = text[starts[:, None] + torch.arange(self.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def pieces_hash(rest):
    """The current hash of the data "pieces VOCABULARY PATH"; `rest` is the part after "pieces".

    It identifies the learnt tokenizer: another text or version of tokenizers may merge differently.
    """
    vocabulary, _, path = rest.partition(" ")
    return _tokenizer_hash(_tokenizer(path, corpus_hash(path), int(vocabulary)))


@trace.cache
def _tokenizer(path, sha, vocabulary):
    """The tokenizer trained on the training files.

    It reads bytes as Latin-1, which has one character per byte. Raises ImportError without the
    package tokenizers.
    """
    try:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError(f"{error.name} is missing: {INSTALL}", name=error.name) from error

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    alphabet = [chr(byte) for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(
        (text.decode("latin-1") for text in parts(path, sha)[0].values()), trainer
    )
    trace.reads(f"pieces {vocabulary} {path}".strip(), _tokenizer_hash(tokenizer))
    return tokenizer


def _tokenizer_hash(tokenizer):
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:12]


@trace.cache
def _encoded(path, sha, vocabulary):
    """All training pieces and all validation pieces, int32; files are joined by newlines."""
    tokenizer = _tokenizer(path, sha, vocabulary)
    spelt = []
    for part in parts(path, sha):
        texts = [text.decode("latin-1") for text in part.values()]
        texts = [text + "\n" for text in texts[:-1]] + texts[-1:]
        spelt.append(
            torch.tensor([i for each in tokenizer.encode_batch_fast(texts) for i in each.ids]).int()
        )
    return spelt


@trace.cache
def _unseen(path, sha, vocabulary, length, size, seed):
    """Start indices of new validation windows, see code.unseen."""
    return unseen(*_encoded(path, sha, vocabulary), length, size, seed, path)
