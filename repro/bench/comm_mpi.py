"""placeholder"""
from repro.bench.comm_result import MpiResult
def measure(launcher, world, sizes, repetitions, seconds, show):
    return MpiResult(world=world, problem="no")
