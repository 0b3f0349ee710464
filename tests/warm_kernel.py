"""Kernels forked from a process that has imported what every notebook imports: each begins at once, and shares nothing.

`python warm_kernel.py SOCKET` is that process. `python warm_kernel.py SOCKET ARGUMENTS` asks it for a kernel and stands
for it: who ends the one ends the other.
"""

import array
import hashlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading

IMPORTED = (
    "lab.study", "lab.models", "lab.charts", "matplotlib.pyplot", "pandas.io.formats.style", "scipy.stats", "sympy",
    "ipykernel.kernelapp", "ipywidgets", "jinja2", "PIL.PngImagePlugin", "scipy.cluster.hierarchy",
    "torch._dynamo",  # which the first optimizer of a process imports
    *(f"lab.tasks.{name}" for name in ("code", "sequences", "recall", "languages", "definitions")),
    *(f"lab.measure.{name}" for name in ("attention", "memory", "neurons", "hooks", "timing", "maps", "ngrams")),
    *(f"lab.recipes.{name}" for name in ("byte_model", "timed_calls", "activations", "longer", "looks")),
)  # fmt: skip


def socket_in(folder):
    """Where the process of a folder listens: a socket's path is limited."""
    return f"{tempfile.gettempdir()}/lab-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def serve(path):
    """Import, say so, then fork a kernel for everyone who asks."""
    import importlib

    sys.path.pop(0)  # where this file lies
    for name in IMPORTED:
        importlib.import_module(name)
    sys.modules["lab.tasks.code"].Code(64).text()  # read once; no torch computes before a fork
    sys.modules["lab.ledger.claims"].ledger()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    print("ready", flush=True)
    while True:
        asked, _ = server.accept()
        message, files, _, _ = socket.recv_fds(asked, 2**20, 3)
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            become(**json.loads(message), files=files, asked=asked)
        for file in (*files, asked.detach()):
            os.close(file)


def become(arguments, folder, environment, files, asked):
    """A kernel with these arguments, until it ends or whoever asked is gone."""
    from ipykernel.kernelapp import launch_new_instance

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.argv = ["kernel", *arguments]
    threading.Thread(target=lambda: asked.recv(1) or os._exit(1), daemon=True).start()
    launch_new_instance(argv=arguments)
    os._exit(0)  # nothing is left to be torn down


def ask(path, arguments):
    """Stand for a kernel that the process at the socket forks."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    message = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    files = array.array("i", [0, 1, 2]).tobytes()
    server.sendmsg([json.dumps(message).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server.recv(1)


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) == 2 else ask(sys.argv[1], sys.argv[2:])
