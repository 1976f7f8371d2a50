"""Where modules and names went: what notebooks that were handed out earlier import, and what it is called today."""

# module -> its place today; what is inside a package moves along
MODULES = {
    "autograder.exercises.fickle": "autograder.drivers.fickle",
    "course_lib.arrays": "course_lib.arithmetic.arrays",
    "course_lib.attention.paged": "course_lib.model",
    "course_lib.bits": "course_lib.lessons.nb04_bits",
    "course_lib.capstone": "course_lib.lessons.nb09_capstone",
    "course_lib.cost.one_shot": "course_lib.lessons.nb00_freeze",
    "course_lib.demo": "course_lib.commands.demo",
    "course_lib.doctor": "course_lib.learner.doctor",
    "course_lib.environment": "course_lib.learner.environment",
    "course_lib.faults": "course_lib.diagnosis.faults",
    "course_lib.golden": "course_lib.weights.golden",
    "course_lib.huggingface": "course_lib.weights.huggingface",
    "course_lib.invariant": "course_lib.arithmetic",
    "course_lib.kv_diff": "course_lib.diagnosis.kv_diff",
    "course_lib.ledger": "course_lib.weights.ledger",
    "course_lib.lesson_both": "course_lib.lessons.nb08_both",
    "course_lib.lesson_budget": "course_lib.lessons.nb05_budget",
    "course_lib.lesson_device": "course_lib.lessons.nb09_device",
    "course_lib.lesson_model": "course_lib.lessons.nb01_divisible",
    "course_lib.lesson_prefix": "course_lib.lessons.nb07_prefix_cache",
    "course_lib.lesson_tradeoff": "course_lib.lessons.nb06_tradeoff",
    "course_lib.masks": "course_lib.attention.mask",
    "course_lib.notebook_doctor": "course_lib.learner.notebook_doctor",
    "course_lib.notebook_file": "course_lib.learner.notebook_file",
    "course_lib.progress": "course_lib.learner.progress",
    "course_lib.quiz": "course_lib.learner.quiz",
    "course_lib.rope": "course_lib.positions",
    "course_lib.safetensors_file": "course_lib.weights.safetensors_file",
    "course_lib.schedule.limits": "course_lib.schedule.refusals",
    "course_lib.serve.load": "course_lib.load.run",
    "course_lib.serve.load_address": "course_lib.load.address",
    "course_lib.serve.load_client": "course_lib.load.client",
    "course_lib.serve.load_http": "course_lib.load.http",
    "course_lib.serve.load_measure": "course_lib.load.measure",
    "course_lib.serve.load_picture": "course_lib.load.picture",
    "course_lib.serve.load_prompts": "course_lib.load.prompts",
    "course_lib.serve.load_report": "course_lib.load.report",
    "course_lib.serve.sse": "course_lib.load.sse",
    "course_lib.trace": "course_lib.schedule.step_record",
    "course_lib.trace_file": "course_lib.load.arrivals_csv",
    "course_lib.train_ledger": "course_lib.weights.train_ledger",
    "course_lib.walkthrough": "course_lib.commands.walkthrough",
}

# (module, name), as it was -> (module, name) today: names that were renamed, or that left their module alone
NAMES = {
    ("autograder.answers", "perform"): ("autograder.older", "perform"),
    ("autograder.exercises.nb09_time", "Device"): ("autograder.drivers.nb09", "Device"),
    ("course_lib.cache.prefix", "PrefixCache"): ("course_lib.cache.prefix", "PrefixIndex"),
    ("course_lib.cache.radix", "RadixTree"): ("course_lib.cache.radix", "RadixCache"),
    ("course_lib.environment", "explain"): ("course_lib.learner.pip_says", "explain"),
    ("course_lib.walkthrough", "Setting"): ("course_lib.commands.walkthrough", "Knobs"),
    ("course_lib.weights", "converter"): ("course_lib.weights.build", "converter"),
    ("course_lib.weights", "expected_shapes"): ("course_lib.weights.build", "expected_shapes"),
}


def module_today(module: str) -> str:
    """The dotted name of `module` today; itself if it has not moved."""
    parent, child = module, ""
    while parent:
        if parent in MODULES:
            return MODULES[parent] + child
        parent, _, last = parent.rpartition(".")
        child = f".{last}{child}"
    return module


def import_today(module: str, name: str) -> tuple[str, str]:
    """What `from module import name` has to say today: (module, name). `name` may be a module itself."""
    if (module, name) in NAMES:
        return NAMES[module, name]
    whole = f"{module}.{name}"
    if module_today(whole) != f"{module_today(module)}.{name}":
        today = module_today(whole).rpartition(".")
        return today[0], today[2]
    return module_today(module), name


def renamed(module: str, name: str) -> tuple[str, str] | None:
    """(module, name) today of a renamed `name`, whose module may be given as it was or as it is; None for others."""
    for (old_module, old_name), today in NAMES.items():
        if name == old_name and module in (old_module, module_today(old_module)):
            return today
    return None


def name_today(dotted: str) -> tuple[str, str] | None:
    """The part of `dotted` that has another name today, and that name; None if all of it is called so today."""
    names = dotted.split(".")
    for length in range(len(names), 1, -1):
        found = renamed(".".join(names[: length - 1]), names[length - 1])
        if found:
            return ".".join(names[:length]), ".".join(found)
    for length in range(2, len(names) + 1):  # all that stands behind a module's name moves with it
        module = ".".join(names[:length])
        if module_today(module) != module:
            return module, module_today(module)
    return None
