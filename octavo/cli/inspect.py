"""`octavo inspect`: what a model is, what Octavo does with it, and why."""

from collections.abc import Sequence

from octavo.cli.options import command_parser, read_config


def run(arguments: Sequence[str]) -> int:
    """Load the model as `serve` would, and print what came of it."""
    parser = command_parser("inspect", "Show what a model is and what Octavo does with it, and why.")
    parser.add_argument("--program", action="store_true", help="print the recorded program, instruction by instruction")
    parsed = parser.parse_args(arguments)
    config = read_config(parsed)

    from octavo.cli.report import program, report  # after the flags are known to be right
    from octavo.engine.build import build_engine
    from octavo.engine.frontend import build_frontend

    engine = build_engine(config)
    try:
        template = build_frontend(config, engine.source).chat_template
        print("\n".join(program(engine) if parsed.program else report(engine, template)))
    finally:
        engine.close()
    return 0
