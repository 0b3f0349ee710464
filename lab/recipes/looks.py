"""What a lesson asks of the heads of trained models: where they look in texts, and which patterns
are whose.

Maps are attention weights (b, h, q, k), a list with one entry a layer; layers are counted from 1 in
what comes back.
"""

import pandas as pd
import torch
import torch.nn.functional as F

from lab.measure.attention import attention_maps
from lab.measure.heads import ablation_costs, head_table
from lab.measure.maps import copies, mass, packed, pointing, relative_distance, uniform_mass
from lab.tasks.discourse import Pronouns
from lab.tasks.labels import KINDS
from lab.tasks.languages import Dyck
from lab.tasks.sequences import Blocks, Count, Maximum, Repeats, Sort
from lab.tasks.task import accuracy
from lab.training import cross_entropy

FAR = 3  # tokens; what is nearer is local
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
    """New sequences of a family: tokens, targets (-100: not asked), and for each query the keys
    that hold the answer and their rivals (b, q, k).

    Of brackets the kind of a closing one is asked. Rivals are the other name, or what would matter
    in another sequence.
    """
    task, draw = task_of(family), torch.Generator().manual_seed(10**6)
    if family in ("repeats", "brackets"):
        found = task.annotated(draw, windows)
        tokens, targets, source = found["tokens"], found["targets"], found.get("source")
        if family == "brackets":
            targets, source = targets.where(targets >= task.kinds, -100), found["pending"]
        keys = pointing(source)
    else:
        tokens, targets = _seldom(family, *task.batch(draw, 2 * windows), windows)
        wanted = tokens - task.symbols if family == "counting" else targets
        keys = (tokens[:, None] == wanted[..., None]).tril()
    rivals = (tokens < 16)[:, None] & ~keys if family == "pronouns" else keys.roll(1, 0)
    return tokens, targets, keys, rivals


def _seldom(family, tokens, targets, windows):
    """Without what training shows again and again: nearly all items alike, or all numbers tiny."""
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
    """Share of right answers; of brackets, whose side a coin decides, among the closing ones."""
    logits = model(tokens)
    if family == "brackets":
        logits[..., : logits.shape[-1] // 2] = -torch.inf
    return accuracy(logits, targets)


def heads_of(model, tokens, targets, keys, rivals):
    """A row a head, where an answer is asked (targets of -100 elsewhere): layer, head and

    distance: over that of uniform attention; far: weight on `keys` over FAR tokens back, and what
    is `uniform` for it; rival: weight on `rivals` as far; cost: what the loss gains when the head
    is silent, nats an answer.
    """
    tokens, targets, keys, rivals = (
        x.to(next(model.parameters()).device) for x in (tokens, targets, keys, rivals)
    )
    asked, place = targets != -100, torch.arange(tokens.shape[1], device=tokens.device)
    distant = asked[..., None] & (place[:, None] - place > FAR)
    measures = {
        "distance": lambda m: relative_distance(m, asked),
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
    """The rows of heads_of, and one with the map of the head with most weight on far keys that
    matter: what it gives on the first `tokens` of the first sequence, packed.
    """
    table = heads_of(model, *gold)
    best = table.loc[(table.far - table.uniform).idxmax()]
    (shown,) = attention_maps(model, gold[0][:1].to(next(model.parameters()).device))[
        int(best.layer) - 1
    ][:, int(best["head"])]
    drawn = {"layer": best.layer, "head": best["head"], "map": packed(shown[:tokens, :tokens])}
    return table, pd.DataFrame([drawn])


def copying_scores(model, vocabulary, period=25):
    """Of the best head of each layer, on a block of different tokens four times over: its weight on
    the token before, {"before 1": ...}, and on the token after the earlier copies of the present
    one, {"induction 1": ...}.
    """
    tokens = Blocks(vocabulary, period).batch(torch.Generator().manual_seed(7), 16)[0]
    before = pointing(torch.arange(tokens.shape[1])[None] - 1)
    wanted, found = {"before": before, "induction": copies(tokens.shape[1], period, 1)}, {}
    for layer, m in enumerate(attention_maps(model, tokens.to(next(model.parameters()).device)), 1):
        found |= {
            f"{name} {layer}": mass(m, keys.to(m.device)).max().item()
            for name, keys in wanted.items()
        }
    return found


def texts_of(task, windows):
    """Tokens by kind of text: windows of code, those of letters, blanks and stops alone, 16 random
    letters repeated.
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
    """How far every head looks, over uniform attention, at all positions: layer, head, distance."""
    tokens = tokens.to(next(model.parameters()).device)
    everywhere = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)
    table = head_table(
        attention_maps(model, tokens), {"distance": lambda m: relative_distance(m, everywhere)}
    )
    return table.assign(layer=table.layer + 1)


def name_sources(found):
    """For each byte of a name that was used before in its window, where that byte stands in the
    earlier use, else -1.

    `found` is what Code.annotated gives.
    """
    source, inside = found["last_use"].clone(), found["kind"] == KINDS.index("name")
    for t in range(source.shape[1] - 2, -1, -1):
        goes_on = inside[:, t] & inside[:, t + 1] & (source[:, t + 1] > 0)
        source[:, t] = source[:, t].where(~goes_on, source[:, t + 1] - 1)
    return source


def names_of(found):
    """Names that were used before: tokens, targets (-100 elsewhere), keys, and the tokens with the
    earlier uses lost.

    The keys of a byte are the same byte in the earlier use and the one after it; lost uses become
    random letters.
    """
    tokens, source = found["tokens"], name_sources(found)
    letters = torch.randint(97, 123, tokens.shape, generator=torch.Generator().manual_seed(7))
    lost = tokens.where((source >= 0) | ~pointing(source).any(1), letters)
    return tokens, found["targets"].where(source >= 0, -100), _and_after(source), lost


def patterns_of(found):
    """Keys (b, q, k) by the name of a pattern: what a specialist would look at.

    `found`: see name_sources.
    """
    tokens = found["tokens"]
    place = torch.arange(tokens.shape[1])
    back = (place[:, None] - place).expand(len(tokens), -1, -1)
    same = (tokens[:, :, None] == tokens[:, None]) & (back > 0)
    blank = (tokens == 32) | (tokens == 10)
    opener = F.pad(
        found["opener"][:, 1:], (0, 1), value=-1
    )  # asked at the byte before the closing bracket
    return {
        "byte itself": back == 0,
        "byte before": back == 1,
        "two to four back": (back > 1) & (back < 5),
        "first byte": (place == 0) & (back > 4),
        "blanks": blank[:, None] & (back > 0),
        "same byte earlier": same,
        "after the same byte": F.pad(same, (1, 0))[..., :-1] & (back > 1),
        "open bracket": pointing(opener),
        "earlier use of a name": _and_after(name_sources(found)),
    }


def lifts(maps, wanted):
    """Of each head and pattern (weight - uniform) / (1 - uniform): layer, head, pattern, value.

    0 is what uniform weights put on its keys, 1 is all weight.
    """
    even = {name: uniform_mass(keys) for name, keys in wanted.items()}
    lift = {
        name: lambda m, name=name, keys=keys: (
            (mass(m, keys.to(m.device)) - even[name]) / (1 - even[name])
        )
        for name, keys in wanted.items()
    }
    table = head_table(maps, lift).melt(["layer", "head"], var_name="pattern")
    return table.assign(layer=table.layer + 1)


def exchanged(maps, seed=0):
    """The same maps, but in every window the heads of a layer have changed places at random."""
    draw = torch.Generator().manual_seed(seed)
    order = [
        torch.rand(m.shape[:2], generator=draw).argsort(1)[..., None, None].to(m.device)
        for m in maps
    ]
    return [torch.take_along_dim(m, places, 1) for m, places in zip(maps, order, strict=True)]


def reading(model, untrained, task, windows):
    """Rows on a model of the next byte of code, before and after: distances by text, heads at
    names, lifts by pattern.

    `what` says which: a kind of text, "names" (helps: what its loss there gains when the earlier
    uses are lost) or "lift"; `stage` is untrained, trained, or, of lifts, shuffled: heads that
    changed places.
    """
    texts, found = texts_of(task, windows), task.annotated(windows)
    wanted, tables = patterns_of(found), []
    tokens, targets, keys, lost = names_of(found)
    for stage, each in (("untrained", untrained), ("trained", model)):
        here = next(each.parameters()).device
        maps = attention_maps(each, tokens.to(here))
        with torch.no_grad():
            blind, nats = (
                cross_entropy(each(x.to(here)), targets.to(here)).item() for x in (lost, tokens)
            )
        names = heads_of(each, tokens, targets, keys, keys.roll(1, 0)).assign(
            what="names", helps=blind - nats
        )
        rows = [distances_of(each, text).assign(what=name) for name, text in texts.items()]
        rows += [names, lifts(maps, wanted).assign(what="lift")]
        tables += [pd.concat(rows).assign(stage=stage)]
    return pd.concat(
        [*tables, lifts(exchanged(maps), wanted).assign(what="lift", stage="shuffled")]
    )


def _and_after(source):
    return pointing(source) | pointing((source + 1).where(source >= 0, -1))
