"""The arguments of the commands for tokens. The modules of the commands are imported only when a command runs."""

import argparse

CREATE_DESCRIPTION = (
    "Create a random token. Print the entry for the token file to standard output, and the token to standard error. The"
    " entry contains only the digest of the token, so no command can show the token again."
)
CREATE_EXAMPLE = "example: gpu-runtime tokens create --name shop --scopes runtime --expires-in 90d >> tokens.yaml"


def add_tokens_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tokens = commands.add_parser("tokens", help="create tokens of the API", description="Create tokens of the API.")
    actions = tokens.add_subparsers(metavar="ACTION", required=True)
    summary = "create a random token and its entry for the token file"
    create = actions.add_parser("create", help=summary, description=CREATE_DESCRIPTION, epilog=CREATE_EXAMPLE)
    create.add_argument("--name", required=True, help="name of the caller in logs and rate limits")
    create.add_argument(
        "--scopes", required=True, help="scopes of the caller, separated by commas, for example operator,runtime"
    )
    create.add_argument(
        "--expires-in",
        default="",
        metavar="TIME",
        help="time until the token expires, for example 90d, 12h or 30m (default: the token does not expire)",
    )
    create.set_defaults(command="tokens_create")
