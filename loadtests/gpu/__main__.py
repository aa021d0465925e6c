"""Runs all GPU sections: `python -m loadtests.gpu --output DIR`."""

from loadtests.gpu.command import gpu_command

if __name__ == "__main__":
    gpu_command()
