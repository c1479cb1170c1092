"""The `sandboxkit` command, outside the package: a Ctrl-C while that is imported prints no traceback."""


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from sandboxkit import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130
