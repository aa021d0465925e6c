"""Serves a repository with Triton, from Triton's own virtual environment."""

import sys
from pathlib import Path

from loadtests.peers.triton.launch import become_server

if __name__ == "__main__":
    become_server(Path(sys.argv[1]), port=int(sys.argv[2]), scratch=Path(sys.argv[3]))
