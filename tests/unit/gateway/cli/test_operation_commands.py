"""Commands that carry out operations start quickly."""

import subprocess
import sys


def test_commands_of_operations_import_neither_redis_nor_sql() -> None:
    code = (
        "import sys; from gateway.cli.operation_commands import OperationGroup;"
        "from gateway.cli.root import main;"
        "groups = [g for g in main.commands.values() if isinstance(g, OperationGroup)];"
        "print(sum(len(g.list_commands(None)) for g in groups) > len(groups));"
        "print([name for name in ('redis', 'sqlalchemy') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == ["True", "[]"]
