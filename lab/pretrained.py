"""Models trained elsewhere, through transformers (the extra `pretrained`): safetensors only,
nothing is unpickled.
"""

from pathlib import Path

INSTALL = "pip install 'transformer-lab[pretrained]'"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def load(name):
    """(model, tokenizer) of a causal language model in a local folder or on the Hugging Face hub,
    ready to be probed.

    `name` is a path, or a hub name such as "openai-community/gpt2". The tokenizer is None where
    there is none. The model is in evaluation mode and calls F.scaled_dot_product_attention, where
    attention_probe observes it; code that comes with a checkpoint is never run.

    Raises ImportError without transformers, FileNotFoundError for a path that is no checkpoint and
    a hub name that does not exist, ValueError for weights that are not safetensors, ConnectionError
    where the hub cannot be reached.
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
        raise _explained(error, name, local) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except (
        OSError,
        ValueError,
        ImportError,
        TypeError,
        AttributeError,
        KeyError,
    ):  # no tokenizer files
        tokenizer = None
    empty = not getattr(
        tokenizer, "vocab_size", 0
    )  # without files, some kinds still make one, of no words
    return model.eval(), None if empty else tokenizer


def _check(folder):
    """Raise where a folder holds no checkpoint, or one that would have to be unpickled."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is no checkpoint: it has no config.json")
    if not any((folder / weights).is_file() for weights in WEIGHTS):
        found = ", ".join(sorted(p.name for p in folder.iterdir()))
        raise ValueError(
            f"{str(folder)!r} has no {WEIGHTS[0]}, the only weights that are read; it has {found}"
        )


def _looks_like_a_path(name):
    """Hub names are `model` or `owner/model`; whatever else is meant as a path."""
    return (
        name.startswith((".", "/", "~", "\\"))
        or name.count("/") > 1
        or "\\" in name
        or name.endswith("/")
    )


def _explained(error, name, local):
    """The same failure in words that say what to do."""
    text = str(error)
    if local:
        return ValueError(f"the checkpoint at {str(name)!r} cannot be read: {text}")
    chain, causes = error, []
    while chain is not None:
        causes.append(type(chain).__name__)
        chain = chain.__cause__ or chain.__context__
    if "safetensors" in text:
        return ValueError(
            f"{str(name)!r} has no safetensors weights on the hub, the only ones that are read"
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
