"""Writes dashboards and rules into deploy/: `python -m tools.monitoring [--runbooks ADDRESS]`."""

from argparse import ArgumentParser

from tools.monitoring.files import DASHBOARD_FOLDER, generated
from tools.monitoring.rules import RUNBOOKS

if __name__ == "__main__":
    parser = ArgumentParser("python -m tools.monitoring", description="Write deploy/ anew.")
    parser.add_argument(
        "--runbooks",
        default=RUNBOOKS,
        help="where people who are called read the page of an alert, with {alert} for its name,"
        " such as https://docs.example.com/runbooks/{alert}.html; %(default)s",
    )
    arguments = parser.parse_args()
    if "{alert}" not in arguments.runbooks:
        parser.error("--runbooks needs `{alert}`, the place of the alert's name")
    files = generated(arguments.runbooks)
    for path in DASHBOARD_FOLDER.glob("*.json"):
        if path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)
        print(path)
