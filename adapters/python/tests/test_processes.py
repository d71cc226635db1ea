"""Whole scripts, followed as `paceline run` does it: launchers, libraries, and processes that end badly."""

import importlib.util
import os
import subprocess
import sys
import textwrap
import unittest
import unittest.mock

from following import FollowCase, Rank, ranks


def needs(module):
    return unittest.skipUnless(importlib.util.find_spec(module), f"needs {module}")


class Ddp(FollowCase):
    def test_accumulation_with_no_sync_exchanges_once_a_step(self):
        self.run_script("ddp_train.py", workers=2)
        told = ranks(self.out)
        self.assertEqual([rank.header["rank"] for rank in told], [0, 1])
        for rank in told:
            self.check_steps(rank, 4, "load", "forward", "backward", "update", "comm_cpu")
            self.assertEqual([step["examples"] for step in rank.steps], [12] * 4)
            self.assertEqual(rank.header["case"]["workers"], 2)
            for step in rank.steps[2:]:
                for arrival in step["arrivals"]:
                    self.assertLess(arrival["begun"], arrival["ended"])
        sizes = [[[each["bytes"] for each in step["arrivals"]] for step in rank.steps[2:]] for rank in told]
        self.assertEqual(sizes[0], sizes[1], "the ranks tell of the same exchanges")
        gradients, buffers = 39_464, 1_032
        self.assertEqual([sum(step) for step in sizes[0]], [gradients + buffers] * 2, "once a step")

    def test_the_same_bits_come_out_with_and_without_being_followed(self):
        for workers in (2, 3):
            plain = self.run_script("ddp_train.py", "--again", workers=workers, fork=True, followed=False)
            self.assertEqual(len(plain.splitlines()), 2)
            self.assertEqual(self.run_script("ddp_train.py", "--again", workers=workers, fork=True), plain, workers)

    def test_a_hook_of_the_scripts_own_is_kept_and_timed(self):
        plain = self.run_script("ddp_train.py", "--hook", "early", workers=2, fork=True, followed=False)
        self.assertIn("True", plain)
        self.assertEqual(self.run_script("ddp_train.py", "--hook", "early", workers=2, fork=True), plain)
        self.assertTrue(all(step.get("arrivals") for rank in ranks(self.out) for step in rank.steps[1:]))

    def test_a_rank_that_crashes_leaves_what_is_known(self):
        self.run_script("ddp_train.py", "--crash", "2", workers=2, fork=True, status=1)
        lost = Rank(os.path.join(self.out, "rank-1.jsonl"))  # the other is killed, perhaps before it wrote anything
        self.assertEqual(len(lost.steps), 3)
        self.assertIsNone(lost.done)


def weights(printed):
    """The line that a script prints of the bits of its weights."""
    line, = [line for line in printed.splitlines() if line.startswith("weights ")]
    return line


class Fsdp(FollowCase):
    def test_one_process(self):
        self.run_script("fsdp_train.py", workers=1, launched=True)
        rank, = ranks(self.out)
        self.check_steps(rank, 6, "load", "forward", "backward", "update")

    def test_its_collectives_are_waits(self):
        plain = self.run_script("fsdp_train.py", workers=2, followed=False)
        self.assertEqual(weights(self.run_script("fsdp_train.py", workers=2)), weights(plain))
        for rank in ranks(self.out):
            self.check_steps(rank, 6, "load", "forward", "backward", "update", "comm_wait")
            self.assertEqual(rank.header["case"]["update"], "sharded")
            self.assertGreater(len(rank.steps[3]["arrivals"]), 3)


@needs("lightning")
class Lightning(FollowCase):
    def test_one_process(self):
        self.run_script("lightning_fit.py")
        rank, = ranks(self.out)
        self.check_steps(rank, 16, "load", "backward", "update")
        self.assertTrue(all("forward" in step["phases"] for step in rank.steps[4:]))
        self.assertEqual(rank.header["case"]["model"], "Classifier")
        self.assertEqual([step["step"] for step in rank.steps if "eval" in step["phases"]], [7, 15])
        self.assertEqual([step["step"] for step in rank.steps if "checkpoint" in step["phases"]], [7, 15])
        self.assertEqual({step["examples"] for step in rank.steps[4:]}, {8})

    def test_two_processes(self):
        plain = self.run_script("lightning_fit.py", workers=2, followed=False)
        self.assertEqual(weights(self.run_script("lightning_fit.py", workers=2)), weights(plain))
        for rank in ranks(self.out):
            self.check_steps(rank, 8, "load", "forward", "backward", "update", "comm_cpu")

    def test_the_callback_says_it_in_code(self):
        rank = self.with_callback("lightning_fit.py")
        self.check_steps(rank, 16, "load", "backward", "update")


@needs("transformers")
class Transformers(FollowCase):
    def check(self, rank, count, accumulated=8):
        self.check_steps(rank, count, "forward", "backward", "update")
        self.assertEqual(rank.header["case"]["model"], "Classifier")
        self.assertEqual({step["examples"] for step in rank.steps[1:]}, {accumulated})
        paused = [step["step"] for step in rank.steps if "eval" in step["phases"]]
        self.assertEqual(paused, list(range(2, count, 3)))

    def test_one_process(self):
        self.run_script("trainer_train.py")
        rank, = ranks(self.out)
        self.check(rank, 12)
        self.assertIn("checkpoint", rank.steps[2]["phases"])

    def test_two_processes(self):
        plain = self.run_script("trainer_train.py", workers=2, followed=False)
        self.assertEqual(weights(self.run_script("trainer_train.py", workers=2)), weights(plain))
        for rank in ranks(self.out):
            self.check(rank, 6)

    def test_the_callback_says_it_in_code(self):
        rank = self.with_callback("trainer_train.py")
        self.check_steps(rank, 12, "forward", "backward", "update")


class Processes(FollowCase):
    def test_spawned_ranks(self):
        self.run_script("processes.py", "spawn")
        for number, rank in enumerate(ranks(self.out)):
            self.check_steps(rank, 4, "load", "forward", "backward", "update")
            self.assertEqual((rank.header["rank"], rank.header["world"]), (number, 2))
            self.assertIsNotNone(rank.done)

    def test_forked_ranks(self):
        self.run_script("processes.py", "fork")
        told = ranks(self.out)
        self.assertEqual([len(rank.steps) for rank in told], [4, 4])
        self.assertTrue(all(rank.done for rank in told))

    def test_workers_of_a_loader_are_no_ranks(self):
        self.run_script("processes.py", "workers")
        rank, = ranks(self.out)
        self.check_steps(rank, 4, "load", "forward", "backward", "update")

    def test_a_script_that_exits_keeps_its_status(self):
        self.run_script("processes.py", "exit", status=7)
        rank, = ranks(self.out)
        self.check_steps(rank, 4)

    def test_a_script_that_raises_is_not_done(self):
        self.run_script("processes.py", "raise", status=1)
        rank, = ranks(self.out)
        self.check_steps(rank, 4)
        self.assertIsNone(rank.done)


class Site(FollowCase):
    """The file that Python imports at its start; no PyTorch here."""

    def python(self, code, **environment):
        environment = {**self.environment(), **environment}
        return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True)

    def test_the_one_that_it_hides_runs_all_the_same(self):
        hidden = os.path.join(self.folder, "hidden")
        os.mkdir(hidden)
        with open(os.path.join(hidden, "sitecustomize.py"), "w") as file:
            file.write("told = __file__\n")
        path = os.pathsep.join([os.path.join(self.folder, "site"), hidden])
        done = self.python("import sitecustomize; print(sitecustomize.told)", PYTHONPATH=path)
        self.assertEqual((done.stdout.strip(), done.stderr), (os.path.join(hidden, "sitecustomize.py"), ""))

    def test_a_process_without_pytorch_imports_nothing_more(self):
        done = self.python("import sys; print(sorted(name for name in sys.modules if 'paceline' in name or name == 'json'))")
        self.assertEqual((done.stdout.strip(), done.stderr), ("[]", ""))

    def test_looking_for_pytorch_is_not_importing_it(self):
        done = self.python("""
            import importlib.util, sys
            assert importlib.util.find_spec("torch")
            assert "torch" not in sys.modules
            print(sys.meta_path[0].__name__)
        """)
        self.assertEqual((done.stdout.strip(), done.stderr), ("Waiter", ""))

    def test_an_order_that_cannot_be_read_costs_one_warning(self):
        fake = os.path.join(self.folder, "fake")
        os.mkdir(fake)
        with open(os.path.join(fake, "torch.py"), "w") as file:
            file.write("told = 1\n")
        path = os.pathsep.join([os.path.join(self.folder, "site"), fake])
        done = self.python("import torch; print(torch.told)", PYTHONPATH=path, PACELINE_RUN="{")
        self.assertEqual(done.stdout.strip(), "1")
        self.assertEqual(done.stderr.count("paceline: "), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
