"""Attention heads of trained models: where they attend in texts, and which patterns they follow.

Maps are attention weights (b, h, q, k), a list with one entry per layer; results count layers from
1.
"""

import pandas as pd
import torch
import torch.nn.functional as F

from lab.measure.attention import attention_maps
from lab.measure.heads import ablation_costs, head_table
from lab.measure.maps import (
    induction_targets,
    mass,
    one_hot_targets,
    packed,
    relative_distance,
    uniform_mass,
)
from lab.tasks.discourse import Pronouns
from lab.tasks.labels import KINDS
from lab.tasks.languages import Dyck
from lab.tasks.sequences import Blocks, Count, Maximum, Repeats, Sort
from lab.tasks.task import accuracy
from lab.training import cross_entropy

FAR = 3  # tokens; keys further back are far
NAMES = "Ann Bea Eva Fay Ida Joy Liz Mia Bob Dan Guy Jim Leo Max Ned Tom she he"
PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,'-\n"


def task_of(family):
    """The task of a family of inputs."""
    tasks = {
        "repeats": Repeats(4, 12, 32, 32),
        "brackets": Dyck(2, 4, 32),
        "sorting": Sort(8, 8),
        "counting": Count(8, 10),
        "maximum": Maximum(),
        "pronouns": Pronouns(),
    }
    return tasks[family]


def gold_of(family, windows):
    """New sequences of a family: (tokens, targets, keys, rivals).

    targets are -100 where nothing is asked. keys (b, q, k) hold the answer of each query; rivals
    are the other name, or the keys of another sequence. For brackets, the kind of closing ones is
    asked.
    """
    task = task_of(family)
    draw = torch.Generator().manual_seed(10**6)
    if family in ("repeats", "brackets"):
        found = task.annotated(draw, windows)
        tokens = found["tokens"]
        targets = found["targets"]
        source = found.get("source")
        if family == "brackets":
            targets = targets.where(targets >= task.kinds, -100)
            source = found["pending"]
        keys = one_hot_targets(source)
    else:
        tokens, targets = _informative(family, *task.batch(draw, 2 * windows), windows)
        answers = tokens - task.symbols if family == "counting" else targets
        keys = (tokens[:, None] == answers[..., None]).tril()
    rivals = (tokens < 16)[:, None] & ~keys if family == "pronouns" else keys.roll(1, 0)
    return tokens, targets, keys, rivals


def _informative(family, tokens, targets, windows):
    """Drop sequences that training shows often: nearly all items alike, or all numbers small."""
    answers = targets[:, -1]
    kept = {"counting": answers < 7, "maximum": answers > 2}.get(family, answers >= 0)
    return tokens[kept][:windows], targets[kept][:windows]


def words_of(family, tokens):
    """The tokens of a family as words."""
    letters = "abcdefgh"
    spelled = {
        "repeats": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        "brackets": "([)]",
        "sorting": "12345678",
        "counting": [*letters, *(f"{letter}?" for letter in letters)],
        "pronouns": NAMES.split() + ["\u00b7"] * 14,
    }
    return [str(spelled.get(family, range(256))[token]) for token in tokens]


@torch.no_grad()
def answered(model, family, tokens, targets):
    """Accuracy; for brackets, where a coin decides the side, the accuracy of closing ones."""
    logits = model(tokens)
    if family == "brackets":
        logits[..., : logits.shape[-1] // 2] = -torch.inf
    return accuracy(logits, targets)


def heads_of(model, tokens, targets, keys, rivals):
    """Where heads attend at answers: one row per layer and head, with these columns.

    distance: relative to uniform attention; far: weight on `keys` more than FAR tokens back;
    uniform: its value for uniform attention; rival: the same on `rivals`; cost: increase of the
    loss with the head ablated, nats per answer. Targets of -100 are ignored.
    """
    tokens, targets, keys, rivals = (
        x.to(next(model.parameters()).device) for x in (tokens, targets, keys, rivals)
    )
    has_answer = targets != -100
    place = torch.arange(tokens.shape[1], device=tokens.device)
    distant = has_answer[..., None] & (place[:, None] - place > FAR)
    measures = {
        "distance": lambda m: relative_distance(m, has_answer),
        "far": lambda m: mass(m, keys & distant),
        "rival": lambda m: mass(m, rivals & distant),
    }
    maps = attention_maps(model, tokens)
    table = head_table(maps, measures)
    cost = ablation_costs(
        lambda: {"cost": cross_entropy(model(tokens), targets).item()}, len(maps), maps[0].shape[1]
    )
    return table.assign(
        layer=table.layer + 1, cost=cost.value, uniform=uniform_mass(keys & distant)
    )


def heads_and_map(model, gold, tokens=32):
    """The rows of heads_of, and one row with the map of the head with most weight on far keys.

    The map is that on the first `tokens` tokens of the first sequence, packed. "Most weight" is
    relative to uniform attention.
    """
    table = heads_of(model, *gold)
    best = table.loc[(table.far - table.uniform).idxmax()]
    (shown,) = attention_maps(model, gold[0][:1].to(next(model.parameters()).device))[
        int(best.layer) - 1
    ][:, int(best["head"])]
    drawn = {"layer": best.layer, "head": best["head"], "map": packed(shown[:tokens, :tokens])}
    return table, pd.DataFrame([drawn])


def copying_scores(model, vocabulary, period=25):
    """Scores of the best head of each layer on a block of distinct tokens, four times over.

    Weight on the previous token, {"before 1": ...}, and on the token after earlier occurrences of
    the current one, {"induction 1": ...}.
    """
    tokens = Blocks(vocabulary, period).batch(torch.Generator().manual_seed(7), 16)[0]
    before = one_hot_targets(torch.arange(tokens.shape[1])[None] - 1)
    patterns = {"before": before, "induction": induction_targets(tokens.shape[1], period, 1)}
    found = {}
    for layer, m in enumerate(attention_maps(model, tokens.to(next(model.parameters()).device)), 1):
        found |= {
            f"{name} {layer}": mass(m, keys.to(m.device)).max().item()
            for name, keys in patterns.items()
        }
    return found


def texts_of(task, windows):
    """{kind of text: tokens}: code, prose (windows of letters, blanks and punctuation), letters.

    "letters" repeats 16 random letters.
    """
    code = task.validation(16 * windows)[0]
    letters = torch.randint(97, 123, (windows, 16), generator=torch.Generator().manual_seed(7))
    prose = code[torch.isin(code, torch.tensor(list(PLAIN))).all(1)]
    return {
        "code": code[:windows],
        "prose": prose[:windows],
        "letters": letters.repeat(1, task.context // 16),
    }


def distances_of(model, tokens):
    """Mean attention distance of every head, relative to uniform: layer, head, distance."""
    tokens = tokens.to(next(model.parameters()).device)
    everywhere = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)
    table = head_table(
        attention_maps(model, tokens), {"distance": lambda m: relative_distance(m, everywhere)}
    )
    return table.assign(layer=table.layer + 1)


def name_sources(found):
    """For each byte of a name used before in its window, its position in the earlier use, else -1.

    `found` is the result of Code.annotated.
    """
    source = found["last_use"].clone()
    inside = found["kind"] == KINDS.index("name")
    for t in range(source.shape[1] - 2, -1, -1):
        goes_on = inside[:, t] & inside[:, t + 1] & (source[:, t + 1] > 0)
        source[:, t] = source[:, t].where(~goes_on, source[:, t + 1] - 1)
    return source


def names_of(found):
    """Names used before: (tokens, targets, keys, tokens with the earlier uses replaced).

    targets are -100 elsewhere. The keys of a byte are the same byte in the earlier use and the next
    one. Earlier uses are replaced by random letters.
    """
    tokens = found["tokens"]
    source = name_sources(found)
    letters = torch.randint(97, 123, tokens.shape, generator=torch.Generator().manual_seed(7))
    lost = tokens.where((source >= 0) | ~one_hot_targets(source).any(1), letters)
    return tokens, found["targets"].where(source >= 0, -100), _with_next(source), lost


def patterns_of(found):
    """{pattern: keys (b, q, k)}: what a head specialised in the pattern would attend to.

    `found`: see name_sources.
    """
    tokens = found["tokens"]
    place = torch.arange(tokens.shape[1])
    back = (place[:, None] - place).expand(len(tokens), -1, -1)
    same = (tokens[:, :, None] == tokens[:, None]) & (back > 0)
    blank = (tokens == 32) | (tokens == 10)
    # asked at the byte before the closing bracket
    opener = F.pad(found["opener"][:, 1:], (0, 1), value=-1)
    return {
        "byte itself": back == 0,
        "byte before": back == 1,
        "two to four back": (back > 1) & (back < 5),
        "first byte": (place == 0) & (back > 4),
        "blanks": blank[:, None] & (back > 0),
        "same byte earlier": same,
        "after the same byte": F.pad(same, (1, 0))[..., :-1] & (back > 1),
        "open bracket": one_hot_targets(opener),
        "earlier use of a name": _with_next(name_sources(found)),
    }


def lifts(maps, patterns):
    """(weight - uniform) / (1 - uniform) per head and pattern: layer, head, pattern, value.

    0 is the weight of uniform attention, 1 is all weight.
    """
    even = {name: uniform_mass(keys) for name, keys in patterns.items()}
    lift = {
        name: lambda m, name=name, keys=keys: (
            (mass(m, keys.to(m.device)) - even[name]) / (1 - even[name])
        )
        for name, keys in patterns.items()
    }
    table = head_table(maps, lift).melt(["layer", "head"], var_name="pattern")
    return table.assign(layer=table.layer + 1)


def permuted_heads(maps, seed=0):
    """The same maps, with the heads of each layer permuted at random in every window."""
    draw = torch.Generator().manual_seed(seed)
    order = [
        torch.rand(m.shape[:2], generator=draw).argsort(1)[..., None, None].to(m.device)
        for m in maps
    ]
    return [torch.take_along_dim(m, places, 1) for m, places in zip(maps, order, strict=True)]


def reading(model, untrained, task, windows):
    """Attention of a byte model before and after training: distances, heads at names, lifts.

    `what` is a kind of text (distances), "names" (with helps: increase of the loss there without
    the earlier uses) or "lift"; `stage` is untrained, trained, or, for lifts, shuffled (heads
    permuted).
    """
    texts = texts_of(task, windows)
    found = task.annotated(windows)
    patterns = patterns_of(found)
    tables = []
    tokens, targets, keys, lost = names_of(found)
    for stage, each in (("untrained", untrained), ("trained", model)):
        here = next(each.parameters()).device
        maps = attention_maps(each, tokens.to(here))
        with torch.no_grad():
            blind = cross_entropy(each(lost.to(here)), targets.to(here)).item()
            nats = cross_entropy(each(tokens.to(here)), targets.to(here)).item()
        names = heads_of(each, tokens, targets, keys, keys.roll(1, 0)).assign(
            what="names", helps=blind - nats
        )
        rows = [distances_of(each, text).assign(what=name) for name, text in texts.items()]
        rows += [names, lifts(maps, patterns).assign(what="lift")]
        tables += [pd.concat(rows).assign(stage=stage)]
    shuffled = lifts(permuted_heads(maps), patterns).assign(what="lift", stage="shuffled")
    return pd.concat([*tables, shuffled])


def _with_next(source):
    return one_hot_targets(source) | one_hot_targets((source + 1).where(source >= 0, -1))
