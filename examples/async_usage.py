"""Calls from asyncio: await instead of .result(), async for instead of for."""

import asyncio

from sandboxkit import CommandTimeoutError, Session


async def main() -> None:
    async with Session() as session:
        sandbox = session.sandbox()

        result = await sandbox.exec(["python", "-c", "print('awaited')"])
        print(result.stdout.strip())

        numbers = await asyncio.gather(
            *(sandbox.exec(["python", "-c", f"print({n})"]) for n in range(5))
        )
        print([int(each.stdout) for each in numbers])

        async for line in sandbox.exec(["sh", "-c", "echo one; echo two"]).stdout.lines():
            print("line:", line)

        # Cancelling the coroutine that awaits a command kills the command; here asyncio.timeout cancels it.
        process = sandbox.exec(["sleep", "60"])
        try:
            async with asyncio.timeout(0.5):
                await process
        except TimeoutError:
            print("cancelled:", process.cancelled())

        try:
            await sandbox.exec(["sleep", "60"], timeout=0.5)
        except CommandTimeoutError:
            print("timed out; the sandbox is still good:", end=" ", flush=True)
        print((await sandbox.exec(["echo", "yes"])).stdout.strip())


asyncio.run(main())
