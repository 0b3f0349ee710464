"""What parameters must be to each other, and to the memory of this machine, before anything is asked of it."""

import bisect

RULES = []


def rule(check):
    """Register a check; it runs where a notebook has all the parameters that it names, and raises ValueError."""
    RULES.append(check)
    return check


@rule
def heads_divide_width(heads, d_model):
    for h in heads:
        if d_model % h:
            allowed = [n for n in range(1, min(d_model, 4096) + 1) if d_model % n == 0]
            raise ValueError(f"heads: {h} does not divide d_model {d_model}; allowed: {', '.join(map(str, allowed))}")


@rule
def n_heads_divide_width(n_heads, d_model, position="none"):
    if d_model % n_heads:
        raise ValueError(f"n_heads: {n_heads} does not divide d_model {d_model}; change one of them")
    if position == "rotary" and d_model // n_heads % 2:
        raise ValueError(f"n_heads: {n_heads} leaves d_head {d_model // n_heads}, and rotary turns pairs")


@rule
def rotary_turns_pairs(heads, d_model, position):
    odd = [h for h in heads if d_model // h % 2]
    if position == "rotary" and odd:
        raise ValueError(
            f"heads: {odd[0]} leaves d_head {d_model // odd[0]}, and rotary turns pairs; give an even d_head"
        )


@rule
def spans_tile_the_window(spans, context):
    for span in spans:
        if context % span:
            raise ValueError(f"spans: {span} does not divide context {context}")


@rule
def a_bend_shows_at_four_sizes(scaling_widths, longest_run):
    ratios = {b / a for a, b in zip(scaling_widths, scaling_widths[1:], strict=False)}
    if len(scaling_widths) < 4 or len(ratios) > 1 or min(ratios) <= 1:
        raise ValueError(f"scaling_widths: {scaling_widths} are not four or more, each as many times the one before")


@rule
def budgets_can_be_judged(budgets, budget_widths, ratios, ratio_widths, steps, d_model):
    for name, values, least in (("budgets", budgets, 2), ("budget_widths", budget_widths, 3), ("ratios", ratios, 3),
                                ("ratio_widths", ratio_widths, 2)):  # fmt: skip
        if len(values) < least:
            raise ValueError(f"{name}: {values} are too few, a lowest point or a trend needs {least}")
    if steps < 8 or d_model % 8:
        raise ValueError(f"steps: {steps} and d_model {d_model}; at least 8, and a multiple of 8, are needed")


@rule
def model_fits_in_memory(d_model, n_layers=2, context=64, batch=8):
    """Weights, gradients and two moments (16 bytes each of 12 d² a layer), and activations of a training step."""

    def need(d_model, n_layers, batch, context):
        return 16 * 12 * n_layers * d_model**2 + 4 * 34 * n_layers * batch * context * d_model

    within_memory(need, d_model=d_model, n_layers=n_layers, batch=batch, context=context)


@rule
def codes_fit_in_memory(offsets, positions, d_model):
    """Three tables of (offsets + positions) x d_model numbers of 8 bytes."""

    def need(offsets, positions, d_model):
        return 24 * (offsets + positions) * d_model

    within_memory(need, offsets=offsets, positions=positions, d_model=d_model)


@rule
def scores_fit_in_memory(lengths, score_heads=8):
    """Explicit attention at the largest length, forward and backward: about six h x n x n arrays of 4 bytes."""
    within_memory(lambda lengths, score_heads: 24 * score_heads * lengths**2,
                  lengths=max(lengths), score_heads=score_heads)  # fmt: skip


@rule
def memory_lengths_fit_in_memory(memory_lengths, heads):
    """Scores and weights of explicit attention, forward, at the largest length: two h x n x n arrays of 4 bytes."""
    within_memory(lambda memory_lengths, heads: 8 * heads * memory_lengths**2,
                  memory_lengths=max(memory_lengths), heads=max(heads))  # fmt: skip


@rule
def a_head_is_an_even_part_of_the_width(n_heads, d_model):
    if d_model % (2 * n_heads):
        raise ValueError(
            f"d_model: {d_model} does not give {n_heads} heads an even width; take a multiple of {2 * n_heads}"
        )


@rule
def caches_fit_in_memory(contexts, batches):
    """Keys and values of two layers 512 wide, 4 bytes each, for 8, 4, 2 and 1 key-value heads at once."""
    within_memory(lambda contexts, batches: 2 * 2 * 512 * 4 * 15 * contexts * batches // 8,
                  contexts=max(contexts), batches=max(batches))  # fmt: skip


def within_memory(need, **sizes):
    """ValueError where need(**sizes), bytes, is over 4/5 of what is free; tells what fits of each size alone."""
    available = available_memory()

    def fits(**changed):
        return 5 * need(**sizes | changed) <= 4 * available

    if fits():
        return
    fitting = {}
    for name, size in sizes.items():  # need grows with every size
        most = bisect.bisect_left(range(size), True, key=lambda n, name=name: not fits(**{name: n + 1}))
        if most:
            fitting[name] = most
    largest = " or ".join(f"{name} that fits is {most}" for name, most in fitting.items())
    raise ValueError(
        f"{', '.join(f'{name} = {size}' for name, size in sizes.items())} needs about {need(**sizes) / 2**30:.1f} GiB, "
        f"{available / 2**30:.1f} GiB are available; "
        + (f"the largest {largest}" if fitting else "no single size makes it fit")
    )


@rule
def vectors_fit_in_memory(elements):
    """Input, output, two gradients and one spare at the largest size, 4 bytes an element."""
    within_memory(lambda elements: 20 * elements, elements=max(elements))


@rule
def plain_networks_fit_in_memory(plain_width, depths):
    """Weights and gradients of the deepest network, 8 bytes a weight, and 64 rows of activations."""
    within_memory(lambda plain_width, depths: 8 * depths * plain_width * (plain_width + 64),
                  plain_width=plain_width, depths=max(depths))  # fmt: skip


@rule
def windows_fit_in_memory(windows, context, d_model):
    """Logits over bytes and one hidden layer for all measured windows at once, 4 bytes a number."""
    within_memory(lambda windows, context, d_model: 4 * windows * context * (256 + 4 * d_model),
                  windows=windows, context=context, d_model=d_model)  # fmt: skip


@rule
def widths_fit_in_memory(widths, context, n_layers=2):
    """The widest block, and a training step at width 128 with explicit attention of four heads, 4 bytes a number."""

    def need(widths, context, n_layers):
        return 4 * max(widths * (12 * widths + 34 * context), n_layers * context * (34 * 128 + 8 * context))

    within_memory(need, widths=max(widths), context=context, n_layers=n_layers)


@rule
def block_scores_fit_in_memory(block_widths):
    """Scores of heads 64 wide on 16 d tokens, the most that a block is timed on, 4 bytes each."""
    within_memory(
        lambda block_widths: 4 * block_widths // 64 * (16 * block_widths) ** 2, block_widths=max(block_widths)
    )


@rule
def models_at_the_start_fit_in_memory(start_width, start_depths):
    """Weights of the deepest model, 4 bytes each."""
    within_memory(lambda start_width, start_depths: 48 * start_depths * start_width**2,
                  start_width=start_width, start_depths=max(start_depths))  # fmt: skip


@rule
def deep_models_fit_in_memory(depths, code_layers, d_model, deepest=2):
    """Weights, gradients and two moments of the deepest trained model, 16 bytes a weight."""

    def need(depths, code_layers, d_model, deepest):
        return 16 * 12 * max(depths, code_layers, deepest) * d_model**2

    within_memory(need, depths=max(depths), code_layers=code_layers, d_model=d_model, deepest=deepest)


@rule
def a_window_slides_within_itself(stride, context):
    if stride > context:
        raise ValueError(f"stride: {stride} is longer than the window of context {context}; the largest is {context}")


@rule
def the_longest_window_is_scored(scored, context):
    if scored < 8 * context:
        raise ValueError(f"scored: {scored} bytes do not fill a window of eight times context {context}")


@rule
def copies_fit_in_memory(longest, texts, d_model, n_layers=2):
    """Evaluation at four times the longest text, about 8 x longest tokens: twenty arrays of 4 bytes, and the maps."""

    def need(longest, texts, d_model, n_layers):
        return 80 * texts * 8 * longest * d_model + 8 * min(texts, 32) * 4 * n_layers * (8 * longest) ** 2

    within_memory(need, longest=longest, texts=texts, d_model=d_model, n_layers=n_layers)


def available_memory():
    """Bytes of memory that can be had without swapping, as far as the system tells."""
    import psutil

    return psutil.virtual_memory().available
