"""Right answers to the exercises of notebook 08."""


def admit_1(prompt, shared, block_size):
    hit = 0
    while hit + block_size <= shared and hit + block_size < prompt:
        hit += block_size
    return hit


def admit_2(prompt, shared, block_size):
    blocks = shared // block_size
    if blocks * block_size == prompt:
        blocks -= 1
    return blocks * block_size
