"""The embedded cluster by hand: `python e2e/cluster/cluster.py VERB`, and `--help` lists the verbs.

Needs no more than the standard library and PyYAML; see `plimsoll_cluster` for what happens.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plimsoll_cluster import binaries, cluster, images, prerequisites
from plimsoll_cluster.commands import ClusterError, progress
from plimsoll_cluster.processes import ProcessTable, is_alive


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.verb(chosen) or 0)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def up(chosen: argparse.Namespace) -> None:
    if chosen.control_plane_only:
        started = cluster.start_control_plane(chosen.state, with_controllers=chosen.with_controllers)
    else:
        outside = cluster.outside_cluster()
        started = outside or cluster.running_cluster(chosen.state) or cluster.start_cluster(chosen.state)
    print(f"export KUBECONFIG={started.kubeconfig}")
    print(f"kubectl: {started.kubectl_program}   helm: {started.helm_program}")


def down(chosen: argparse.Namespace) -> None:
    was_there = chosen.state.exists()
    cluster.stop(chosen.state)
    progress("stopped, and nothing is left" if was_there else "nothing was running")


def status(chosen: argparse.Namespace) -> int:
    servers = ProcessTable(chosen.state).servers()
    for server in servers:
        print(f"{server.name:24} {server.pid:>8} {'running' if is_alive(server) else 'DEAD'}")
    print(f"whole cluster: {'yes' if cluster.running_cluster(chosen.state) else 'no'} (state in {chosen.state})")
    return 0 if servers and all(is_alive(server) for server in servers) else 3


def build_binaries(_: argparse.Namespace) -> None:
    prerequisites.check(prerequisites.TO_BUILD)
    print(binaries.build())


def install_packages(_: argparse.Namespace) -> None:
    prerequisites.install([*prerequisites.CONTROL_PLANE, *prerequisites.NODE, *prerequisites.IMAGES])


def check(_: argparse.Namespace) -> None:
    """Raises ClusterError with everything that is missing."""
    wanted = (prerequisites.TO_BUILD, prerequisites.CONTROL_PLANE, prerequisites.NODE, prerequisites.IMAGES)
    prerequisites.check([*itertools.chain.from_iterable(wanted)], as_root=True)


def build_image(chosen: argparse.Namespace) -> None:
    prerequisites.check(prerequisites.IMAGES, as_root=True)
    build_args = dict(pair.split("=", 1) for pair in chosen.build_arg)
    images.build_image(chosen.containerfile, chosen.tag, build_args, context=chosen.context, volumes=chosen.volume)


def has_image(chosen: argparse.Namespace) -> int:
    return 0 if images.is_built(chosen.tag) else 3


def load_image(chosen: argparse.Namespace) -> None:
    running = cluster.running_cluster(chosen.state)
    if running is None:
        raise ClusterError(f"no whole cluster runs from {chosen.state}: `make cluster` starts one")
    running.load_image(chosen.tag)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster.py", description="A real Kubernetes on this machine, without Docker."
    )
    verbs = parser.add_subparsers(required=True)
    with_state = argparse.ArgumentParser(add_help=False)
    with_state.add_argument(
        "--state", type=_absolute, default=cluster.default_state(), help="the folder of all it keeps"
    )

    starting = verbs.add_parser("up", parents=[with_state], help="start it, and print its kubeconfig")
    starting.add_argument("--control-plane-only", action="store_true", help="etcd and API server only; needs no root")
    starting.add_argument(
        "--with-controllers", action="store_true", help="with --control-plane-only: controller manager too"
    )
    starting.set_defaults(verb=up)
    verbs.add_parser("down", parents=[with_state], help="stop it and remove all of it").set_defaults(verb=down)
    verbs.add_parser("status", parents=[with_state], help="what runs").set_defaults(verb=status)
    verbs.add_parser("binaries", help="build its programs").set_defaults(verb=build_binaries)
    verbs.add_parser("packages", help="install what it needs, on Debian").set_defaults(verb=install_packages)

    verbs.add_parser("check", help="say what this machine lacks").set_defaults(verb=check)

    building = verbs.add_parser("build-image", help="build a Containerfile")
    building.add_argument("containerfile", type=_absolute)
    building.add_argument("tag")
    building.add_argument("--context", type=_absolute, help="the folder that COPY reads (the Containerfile's own)")
    building.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    building.add_argument(
        "--volume", action="append", default=[], metavar="HERE:THERE:ro", help="seen while building only"
    )
    building.set_defaults(verb=build_image)
    asking = verbs.add_parser("has-image", help="exit code 0 when it is built here")
    asking.add_argument("tag")
    asking.set_defaults(verb=has_image)
    loading = verbs.add_parser("load-image", parents=[with_state], help="hand a built image to the running cluster")
    loading.add_argument("tag")
    loading.set_defaults(verb=load_image)
    return parser


def _absolute(path: str) -> Path:
    return Path(path).absolute()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
