"""`meshbus completion`: the script by which a shell completes the commands and options of meshbus."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that is to complete.")], /
) -> None:
    """Print the completion script of a shell.

    For bash, add `eval "$(meshbus completion bash)"` to ~/.bashrc; for zsh, save it as _meshbus in a directory of $fpath;
    for fish, save it as ~/.config/fish/completions/meshbus.fish.
    """
    from meshbus.cli import application

    print(application().generate_completion(prog_name="meshbus", shell=shell), end="")
