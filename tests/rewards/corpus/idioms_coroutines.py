"""Idioms of tests that run coroutines of the submission."""

from tests.rewards.corpus.idiom import Idiom, check, functions

COROUTINES: dict[str, Idiom] = {
    "coroutines": check(
        "fetch",
        """
        import asyncio
        import inspect
        assert inspect.iscoroutinefunction(candidate)
        assert asyncio.run(candidate("a")) == "got a"
        async def main():
            return await asyncio.gather(candidate("b"), candidate("c"))
        assert asyncio.run(main()) == ["got b", "got c"]
        """,
        "import asyncio\nasync def fetch(name):\n    await asyncio.sleep(0)\n    return f'got {name}'",
        "def fetch(name): return f'got {name}'",
    ),
    "async for": functions(
        """
        import asyncio
        from solution import ticks

        def test_loop():
            async def main():
                found = []
                async for tick in ticks(3):
                    found.append(tick)
                return found
            assert asyncio.run(main()) == [0, 1, 2]

        def test_comprehension():
            async def main():
                return [2 * tick async for tick in ticks(4) if tick]
            assert asyncio.run(main()) == [2, 4, 6]
        """,
        """
        import asyncio
        async def ticks(n):
            for each in range(n):
                await asyncio.sleep(0)
                yield each
        """,
        """
        async def ticks(n):
            for each in range(1, n + 1): yield each
        """,
    ),
    "async with": functions(
        """
        import asyncio
        from solution import Connection

        def test_block():
            async def main():
                connection = Connection()
                async with connection as entered:
                    assert entered is connection
                    assert connection.open
                    assert await connection.ask("a") == "A"
                assert not connection.open
            asyncio.run(main())

        def test_failure():
            async def main():
                connection = Connection()
                try:
                    async with connection:
                        raise KeyError("x")
                except KeyError:
                    assert not connection.open
                    return True
            assert asyncio.run(main())
        """,
        """
        class Connection:
            open = False
            async def __aenter__(self):
                self.open = True
                return self
            async def __aexit__(self, *error): self.open = False
            async def ask(self, text): return text.upper()
        """,
        """
        class Connection:
            open = False
            async def __aenter__(self):
                self.open = True
                return self
            async def __aexit__(self, *error): pass
            async def ask(self, text): return text.upper()
        """,
    ),
    "coroutines that overlap": functions(
        """
        import asyncio
        from solution import run_all

        def test_overlap():
            running = most = 0

            async def work(n):
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.01)
                running -= 1
                return n * n

            found = asyncio.run(run_all([lambda n=n: work(n) for n in range(6)], 2))
            assert found == [0, 1, 4, 9, 16, 25]
            assert most == 2
        """,
        """
        import asyncio
        async def run_all(makers, limit):
            gate = asyncio.Semaphore(limit)
            async def one(make):
                async with gate: return await make()
            return await asyncio.gather(*map(one, makers))
        """,
        """
        import asyncio
        async def run_all(makers, limit): return await asyncio.gather(*(make() for make in makers))
        """,
    ),
    "coroutines with a lock": functions(
        """
        import asyncio
        from solution import Account

        def test_no_update_is_lost():
            async def main():
                account = Account(100)
                answers = await asyncio.gather(*(account.withdraw(30) for _ in range(5)))
                return account.balance, answers.count(True)
            assert asyncio.run(main()) == (10, 3)
        """,
        """
        import asyncio
        class Account:
            def __init__(self, balance): self.balance, self.lock = balance, asyncio.Lock()
            async def withdraw(self, amount):
                async with self.lock:
                    if self.balance < amount: return False
                    await asyncio.sleep(0)
                    self.balance -= amount
                    return True
        """,
        """
        import asyncio
        class Account:
            def __init__(self, balance): self.balance = balance
            async def withdraw(self, amount):
                if self.balance < amount: return False
                await asyncio.sleep(0)
                self.balance -= amount
                return True
        """,
    ),
    "a timeout": functions(
        """
        import asyncio
        from solution import Worker

        def test_timeout():
            async def main():
                worker = Worker()
                try:
                    await asyncio.wait_for(worker.run(60), timeout=0.05)
                except asyncio.TimeoutError:
                    return worker.cancelled
                return False
            assert asyncio.run(main())

        def test_in_time():
            async def main():
                return await asyncio.wait_for(Worker().run(0), timeout=30)
            assert asyncio.run(main()) == "done"
        """,
        """
        import asyncio
        class Worker:
            cancelled = False
            async def run(self, seconds):
                try: await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    self.cancelled = True
                    raise
                return "done"
        """,
        """
        import asyncio
        class Worker:
            cancelled = False
            async def run(self, seconds):
                await asyncio.sleep(seconds)
                return "done"
        """,
    ),
}
