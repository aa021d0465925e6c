"""Starts the command of load tests: `python -m loadtests.scenarios`."""

from loadtests.scenarios.command import scenarios_command

if __name__ == "__main__":
    scenarios_command()
