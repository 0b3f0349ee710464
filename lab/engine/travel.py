"""What travels to workers: a trial, kinds registered outside lab, and the source of a user's own modules."""

import ast
import importlib
import sys
from functools import lru_cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import cloudpickle

from lab import trace
from lab.engine import fingerprint, source


def foreign_kinds():
    """(module and name of the seam, kind, variant) of every kind that is registered outside lab."""
    return [(seam.__module__, name, kind, variant) for name, seam in trace.SEAMS.items()
            for kind, variant in seam.kinds.items() if variant.__module__.split(".")[0] != "lab"]  # fmt: skip


def modules_behind(trial):
    """Names of the modules that a trial, and the kinds registered outside lab, are defined in, lab's included."""
    items = (trial, *(variant for *_, variant in foreign_kinds()))
    return {label.rpartition(".")[0] for item in items for label in fingerprint.code_of(item).parts}


def code_files(trial):
    """{path: hash} of the files of these modules, as they are now."""
    paths = {path for name in modules_behind(trial) if (path := source.source_file(name))}
    return {path: trace.file_hash(path) for path in paths}


def sources(trial):
    """{module: (its path, its text)} of a user's own modules that these are, or that they import anywhere."""
    found, todo = {}, sorted(modules_behind(trial))
    while todo:
        name = todo.pop()
        if name not in found and travels(name):
            path = source.source_file(name)
            found[name] = path, Path(path).read_text("utf-8")
            above = name.split(".")[:-1]
            todo += [".".join(above[:n]) for n in range(1, len(above) + 1)]
            package = name if path.endswith("__init__.py") else ".".join(above)
            todo += source.modules_imported(ast.parse(found[name][1]), package)
    return found


def pack(trial):
    """The trial, the kinds that are registered outside lab, and the source of a user's own modules, as bytes."""
    return cloudpickle.dumps((sources(trial), cloudpickle.dumps((trial, foreign_kinds()))))


def travels(name):
    """Whether a module is a user's own file, neither lab's nor installed."""
    path = source.source_file(name)
    return name.split(".")[0] != "lab" and name != "__main__" and path is not None and not source.is_installed(path)


class Sent(MetaPathFinder, InspectLoader):
    """Finds in a worker the modules that came with its trial, before any file there."""

    sources = {}

    def find_spec(self, name, path=None, target=None):
        if name in self.sources:
            return spec_from_file_location(name, self.sources[name][0], loader=self)
        inside = any(module.startswith(f"{name}.") for module in self.sources)
        return ModuleSpec(name, None, is_package=True) if inside else None  # a folder without __init__.py

    def get_source(self, name):
        return self.sources[name][1]

    def get_code(self, name):
        path, text = self.sources[name]
        return self.source_to_code(text, path)

    def is_package(self, name):
        return self.sources[name][0].endswith("__init__.py")


_sent = Sent()


@lru_cache(maxsize=1)  # a process holds the modules of one
def unpack(packed):
    """The trial; its modules and kinds, and no other's, are here from now on."""
    sources, inner = cloudpickle.loads(packed)
    tops = {name.partition(".")[0] for name in (*_sent.sources, *sources)}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    _sent.sources = sources
    if _sent not in sys.meta_path:
        sys.meta_path.insert(0, _sent)
    for _, seam, kind, _ in foreign_kinds():
        del trace.SEAMS[seam].kinds[kind]
    trial, kinds = cloudpickle.loads(inner)
    for module, seam, kind, variant in kinds:
        getattr(importlib.import_module(module), seam).kinds[kind] = variant
    return trial
