"""Run many short Python programs in a few sandboxes, which are reset after each program."""

from sandboxkit import Interpreter, Session

with Session(
    pool=4,
    max_concurrency=4,
    profile="strict",
    reuse="reset",
    interpreter=Interpreter(preload=("json", "math", "re")),
    tags="example:pool",
) as session:
    session.warm().result()
    jobs = [session.run_python(f"import math; print(math.factorial({n}))") for n in range(20)]
    print([int(job.result().stdout) for job in jobs][-1])

    left = session.run_python("open('/tmp/note', 'w').write('I was here')")
    print(left.result().returncode)
    seen = session.run_python("print(open('/tmp/note').read())")
    print(seen.result().stderr.splitlines()[-1])

    stats = session.pool_stats()
    print(
        f"{stats.made} sandboxes for {len(jobs) + 2} jobs, thrown away: {dict(stats.thrown_away)}"
    )
