"""The next piece of real code: strings of bytes that come often are one token, as in the tokenizers
of large models.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from lab import trace
from lab.tasks.code import unseen
from lab.tasks.corpus import corpus_hash, parts
from lab.tasks.task import Marks, Task

INSTALL = "pip install 'transformer-lab[pieces]'"
WORDS = r" ?[A-Za-z_]+| ?[0-9]+| ?[^\sA-Za-z0-9_]+|\s+"  # no piece reaches over the end of one


@dataclass(frozen=True)
class Pieces(Task):
    """Next piece of the text at `path` (corpus.py).

    Pieces are byte pairs merged again and again (Sennrich 2016).

    text     return self.norm(x)
    tokens   return |  self | .n | or | m | (x
    targets   self | .n | or | m | (x | )           ids 0..vocabulary-1, the first 256 are bytes

    The merges are learnt on the training files alone. With 256 pieces it is Code. Any bytes have
    one spelling, and `decode` gives them back.
    """

    vocabulary: int = 1024
    length: int = 64
    path: str = ""
    holds_out = "a tenth of the files, without windows that other files hold too"

    def __post_init__(self):
        if self.vocabulary < 256:
            raise ValueError(f"vocabulary must be at least 256, the bytes; got {self.vocabulary}")

    @cached_property
    def hash(self):
        """Identifies the text: short sha256 over file names and contents."""
        return corpus_hash(self.path)

    def encode(self, text):
        """Ids of the pieces of some bytes, a list."""
        return _learnt(self.path, self.hash, self.vocabulary).encode(text.decode("latin-1")).ids

    def decode(self, tokens):
        """The bytes that ids spell."""
        return b"".join(self.spellings[token] for token in tokens)

    @cached_property
    def spellings(self):
        """The bytes of each piece, a list; shorter than the vocabulary where the text has nothing
        more to merge.
        """
        tokenizer = _learnt(self.path, self.hash, self.vocabulary)
        return [
            tokenizer.id_to_token(i).encode("latin-1") for i in range(tokenizer.get_vocab_size())
        ]

    def nats_a_byte(self, loss, targets):
        """Nats a byte of a loss in nats a piece, the mean over `targets`: what compares with a
        model of bytes.
        """
        width = torch.tensor([len(spelling) for spelling in self.spellings])
        return loss / width[targets.cpu()].double().mean().item()

    def text(self, held_out=False):
        """The pieces for training, or those for validation: int32 (pieces,).

        ValueError where they are too few.
        """
        text = _spelt(self.path, self.hash, self.vocabulary)[held_out]
        if len(text) <= self.length + 1:
            name = "validation" if held_out else "training"
            raise ValueError(
                f"the {name} text of corpus {self.path!r} has {len(text)} pieces, too few for a window"
            )
        return text

    def marks(self):
        """Of single pieces of the validation text."""
        share = self.text(held_out=True).bincount().double()
        share /= share.sum()
        return Marks(
            chance=share.max().item(),
            unigram_entropy=-torch.special.xlogy(share, share).sum().item(),
        )

    def batch(self, generator, size):
        """Windows at random places of the training text."""
        text = self.text()
        return self._windows(
            text, torch.randint(len(text) - self.length, (size,), generator=generator)
        )

    def validation(self, size, seed=0):
        """Windows of the validation text that stand nowhere in the training text (as Code has
        them).
        """
        text = self.text(held_out=True)
        return self._windows(
            text, _unseen(self.path, self.hash, self.vocabulary, self.length + 1, size, seed)
        )

    def _windows(self, text, starts):
        windows = text[starts[:, None] + torch.arange(self.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def pieces_hash(rest):
    """Identifies what is learnt now for the data "pieces VOCABULARY PATH" of a trial; `rest` is
    what follows "pieces".

    Another text or another version of tokenizers may merge otherwise.
    """
    vocabulary, _, path = rest.partition(" ")
    return _tokenizer_hash(_learnt(path, corpus_hash(path), int(vocabulary)))


@trace.cache
def _learnt(path, sha, vocabulary):
    """The tokenizer of the training files.

    It reads bytes as characters of Latin-1, which has 256 of them.
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
def _spelt(path, sha, vocabulary):
    """All pieces for training and all for validation, int32; files are joined by newlines."""
    tokenizer, spelt = _learnt(path, sha, vocabulary), []
    for part in parts(path, sha):
        texts = [text.decode("latin-1") for text in part.values()]
        texts = [text + "\n" for text in texts[:-1]] + texts[-1:]
        spelt.append(
            torch.tensor([i for each in tokenizer.encode_batch_fast(texts) for i in each.ids]).int()
        )
    return spelt


@trace.cache
def _unseen(path, sha, vocabulary, length, size, seed):
    """Where windows of the validation text start that are new, by the rule of Code."""
    return unseen(*_spelt(path, sha, vocabulary), length, size, seed, path)
