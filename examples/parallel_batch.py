"""Run many programs concurrently in at most four sandboxes, and collect the results in order."""

from sandboxkit import Session, wait

with Session(max_concurrency=4, tags="example:batch") as session:
    batch = [
        session.run(["python", "-c", f"print({number} ** 2)"], timeout=30) for number in range(20)
    ]

    pending, seen = batch, 0
    while pending:
        done, pending = wait(pending, num_returns=5)
        seen += len(done)
        print(f"{seen} of {len(batch)} done")

    squares = [int(process.result().stdout) for process in batch]
    print(squares)
