import subprocess
import sys

PROGRAM = """
import torch
def program(a):
    a.unfold(0, 1, 1).add_(1)
base = torch.zeros(64, 8)
torch.compile(program)(base[:2, :4].mT)
assert base.sum() == 8
"""
died = subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode  # of SIGSEGV or SIGABRT
sys.exit(int(died != 0))
