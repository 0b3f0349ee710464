"""Pretrained models from transformers (extra `pretrained`): safetensors only, no pickles."""

from pathlib import Path

INSTALL = "pip install 'transformer-lab[pretrained]'"


def load(name):
    """Load a causal language model from a local folder or the hub: (model, tokenizer).

    `name` is a path or a hub name such as "openai-community/gpt2". The tokenizer is None if the
    checkpoint has none. The model is in evaluation mode and uses F.scaled_dot_product_attention,
    which attention_probe intercepts. Code in a checkpoint is never executed. Raises ImportError if
    transformers is not installed, and the errors of transformers.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"pretrained models need transformers: {INSTALL}") from error
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else str(name)
    options = {"local_files_only": folder.is_dir(), "trust_remote_code": False}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, use_safetensors=True, attn_implementation="sdpa", **options
    )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, ImportError, TypeError, AttributeError, KeyError):
        tokenizer = None  # no tokenizer files
    # without files, some classes still create a tokenizer with an empty vocabulary
    empty = not getattr(tokenizer, "vocab_size", 0)
    return model.eval(), None if empty else tokenizer
