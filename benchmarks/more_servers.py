"""A simulation of 8, 32 and 128 servers. Prints the figures of docs/postgres_fdw.md.

    PYTHONPATH=plpy_modules:. python benchmarks/more_servers.py

The seconds of a unit are taken from 16 configurations on 8 workers, for which Cerebro took 1.77 hours an epoch (VLDB 2020,
figure 7, ImageNet): one configuration takes 1.77 h * 8 / 16 for one iteration over all rows. 10 iterations are simulated.
"""

from papers.transport import Transport
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate

HOURS, WORKERS, CONFIGURATIONS, ITERATIONS = 1.77, 8, 16, 10
PASS = HOURS * 3600 * WORKERS / CONFIGURATIONS  # seconds of one configuration over all rows
STATE = 792_000_000  # bytes: VGG16, the larger of the two (Cerebro, VLDB 2020, table 5)
GIGABIT = 125_000_000


def carried(bytes, network, **more):
    """A function from a board to the transport of its states."""
    return lambda board: Transport(board, bytes, network, 1e9, **more)


def hours(servers, configurations, transport, whole=PASS):
    """The makespan in hours with the given number of servers, each with one segment."""
    plan = Plan()
    for key in range(1, configurations + 1):
        plan.ask(key, str(key), lambda iteration: ("", ""), ITERATIONS)
    board = Board(plan, range(servers))
    scheduler = SCHEDULERS["randomized"](board, 1, lambda stage: 0)
    return (
        makespan(simulate(board, scheduler, lambda unit: whole / servers, around=transport and transport(board))) / 3600
    )


def main():
    print(
        "| servers | configurations | no transport | 10 Gbit/s, through the coordinator | 10 Gbit/s, direct | "
        "1 Gbit/s, through the coordinator |\n|---|---|---|---|---|---|"
    )
    for servers in (8, 32, 128):
        for configurations in (16, 128):
            row = [hours(servers, configurations, None)]
            for network, direct in ((10 * GIGABIT, False), (10 * GIGABIT, True), (GIGABIT, False)):
                row.append(hours(servers, configurations, carried(STATE, network, direct=direct)))
            given = " (given)" if (servers, configurations) == (WORKERS, CONFIGURATIONS) else ""
            cells = [f"{row[0]:.1f} h{given}", *(f"{h:.1f} h" for h in row[1:])]
            print(f"| {servers} | {configurations} | " + " | ".join(cells) + " |", flush=True)
    print(
        "\nWhere the coordinator's own 5 ms a unit begin to matter: 128 configurations, states of 1 MB\n\n"
        "| servers | a unit takes | hours without its work | with it |\n|---|---|---|---|"
    )
    for servers in (8, 32, 128):
        for seconds in (0.1, 1.0):
            without, with_ = (
                hours(servers, 128, carried(1e6, 10 * GIGABIT, coordinator=work, direct=True), seconds * servers)
                for work in (0.0, 0.005)
            )
            print(f"| {servers} | {seconds} s | {without:.3f} h | {with_:.3f} h |", flush=True)


if __name__ == "__main__":
    main()
