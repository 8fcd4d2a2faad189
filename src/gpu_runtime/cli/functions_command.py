"""The options of `gpu-runtime functions`. This module imports no client, because every process parses these options."""

from pathlib import Path
from typing import Any

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, SYSTEM_NAMESPACE


def add_functions_command(commands: Any) -> None:
    functions = commands.add_parser("functions", help="manage the queues of functions", description="Manage functions.")
    actions = functions.add_subparsers(metavar="ACTION", required=True, dest="action")
    text = "Set the functionID that a function had before a restore of the cluster."
    restore = actions.add_parser("restore", help="set the old functionID of a restored function", description=text)
    restore.add_argument("name", help="name of the function's own unit")
    restore.add_argument(
        "--function-id", required=True, metavar="ID", help="functionID of the function before the restore"
    )
    restore.add_argument("--namespace", default=INSTANCE_NAMESPACE, help="namespace of the unit (%(default)s)")
    restore.add_argument("--system-namespace", default=SYSTEM_NAMESPACE, help="namespace of the queues (%(default)s)")
    restore.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig of an administrator")
    restore.set_defaults(command="function_restore")
