"""Pretrained models from transformers (extra `pretrained`); safetensors only, no unpickling."""

from pathlib import Path

INSTALL = "pip install 'transformer-lab[pretrained]'"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def load(name):
    """(model, tokenizer) of a causal language model from a local folder or the Hugging Face hub.

    `name` is a path, or a hub name such as "openai-community/gpt2". The tokenizer is None if there
    is none. The model is in evaluation mode and calls F.scaled_dot_product_attention, which
    attention_probe intercepts. Code shipped with a checkpoint is never run.

    Raises ImportError without transformers, FileNotFoundError for a path without a checkpoint or an
    unknown hub name, ValueError for weights that are not safetensors, ConnectionError if the hub
    cannot be reached.
    """
    if not str(name).strip():
        raise ValueError(
            "name a folder with a checkpoint, or a model on the hub such as 'openai-community/gpt2'"
        )
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise ImportError(f"pretrained models need transformers: {INSTALL}") from error
    folder = Path(name).expanduser()
    local = folder.is_dir()
    if local:
        _check(folder)
    elif folder.exists() or _looks_like_a_path(str(name)):
        raise FileNotFoundError(
            f"there is no checkpoint at {str(name)!r}: give a folder with config.json"
        )
    options = {"local_files_only": local, "trust_remote_code": False}
    source = str(folder) if local else str(name)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, use_safetensors=True, attn_implementation="sdpa", **options
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _readable_error(error, name, local) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, ImportError, TypeError, AttributeError, KeyError):
        tokenizer = None  # no tokenizer files
    # without files, some classes still create a tokenizer with an empty vocabulary
    empty = not getattr(tokenizer, "vocab_size", 0)
    return model.eval(), None if empty else tokenizer


def _check(folder):
    """Raise if a folder holds no checkpoint, or only one that would have to be unpickled."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is not a checkpoint: it has no config.json")
    if not any((folder / weights).is_file() for weights in WEIGHTS):
        found = ", ".join(sorted(p.name for p in folder.iterdir()))
        raise ValueError(
            f"{str(folder)!r} has no {WEIGHTS[0]}, the only supported format; it has {found}"
        )


def _looks_like_a_path(name):
    """Whether `name` is not of the form `model` or `owner/model` of the hub."""
    return (
        name.startswith((".", "/", "~", "\\"))
        or name.count("/") > 1
        or "\\" in name
        or name.endswith("/")
    )


def _readable_error(error, name, local):
    """The same error with a message that says what to do."""
    text = str(error)
    if local:
        return ValueError(f"the checkpoint at {str(name)!r} cannot be read: {text}")
    chain, causes = error, []
    while chain is not None:
        causes.append(type(chain).__name__)
        chain = chain.__cause__ or chain.__context__
    if "safetensors" in text:
        return ValueError(
            f"{str(name)!r} has no safetensors weights on the hub, the only supported format"
        )
    missing = {
        "RepositoryNotFoundError",
        "EntryNotFoundError",
        "RevisionNotFoundError",
        "HFValidationError",
    }
    if missing & set(causes) and "LocalEntryNotFoundError" not in causes:
        return FileNotFoundError(f"there is no model {str(name)!r} on the hub, and no such folder")
    return ConnectionError(
        f"{str(name)!r} is no folder here and the hub cannot be reached: check the network, or give a local checkpoint"
    )
