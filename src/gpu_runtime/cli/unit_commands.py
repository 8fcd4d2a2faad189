"""The arguments of the commands for units. The modules of the commands are imported only when a command runs."""

import argparse

ROLL_DESCRIPTION = (
    "Replace the pods of units and stock pools that have an older pod profile than the latest profile of this version."
    " Each pod restarts once. The command rolls stock pools first, so that new units get pods with the latest profile."
    " It rolls one object at a time, waits until the object is ready again, and stops at the first error. To continue,"
    " run it again."
)


def add_units_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    units = commands.add_parser("units", help="change the units of a cluster", description="Change units.")
    actions = units.add_subparsers(metavar="ACTION", required=True)
    summary = "replace the pods that have an older pod profile"
    roll = actions.add_parser("roll", help=summary, description=ROLL_DESCRIPTION)
    roll.add_argument("--namespace", default="", help="roll only objects of this namespace (default: all namespaces)")
    roll.add_argument("--dry-run", action="store_true", help="only list the objects, and change nothing")
    roll.add_argument(
        "--all",
        action="store_true",
        help="also roll objects whose pod profile is current, for example after a change of images.sidecar. The"
        " platform replaces a pod only if the new pod would be different",
    )
    roll.add_argument(
        "--timeout-seconds",
        type=float,
        default=900,
        help="maximum time for each object in seconds (default: %(default)s)",
    )
    roll.add_argument("--kubeconfig", default="", help="path of the kubeconfig (default: the same file as kubectl)")
    roll.add_argument("--context", default="", help="context of the kubeconfig (default: the current one)")
    roll.set_defaults(command="units_roll")
