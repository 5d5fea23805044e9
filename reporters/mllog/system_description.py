"""Record + cell -> system description of MLPerf; an empty string is unknown."""

from __future__ import annotations

from repro.record.folder.store import Record
from repro.suite.planning.cell import Cell
from repro.tables.text import gibibytes
from repro.tables.values import plain

STATUS = "Research, Development, or Internal (RDI)"
"""The only status of MLPerf's checker without a promise of availability."""
UNKNOWN = (
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches", "host_processor_interconnect",
    "host_storage_type", "host_storage_capacity", "host_memory_configuration", "accelerator_host_interconnect",
    "accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration",
    "accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology", "cooling",
)
"""Required fields that a record does not contain."""


def system(record: Record, cell: Cell, name: str) -> dict[str, str]:
    """Return all fields that `mlperf_logging.system_desc_checker` requires; all values are text, as there."""
    environment, choices = record.environment, cell.choices
    gpus = environment.devices if choices.device == "cuda" else ()
    emulated = next((item.network for item in record.of_cell(cell.cell_id) if item.network is not None), None)
    network = environment.interconnect
    if emulated is not None:
        rates = sorted({rate / 1e6 for rate in emulated.stated_bits_per_second})
        network = (f"{emulated.origin}: {len(emulated.stated_bits_per_second)} network namespaces on one machine, "
                   f"links shaped to {' and '.join(f'{rate:g}' for rate in rates)} Mbit/s")
    libraries = {name: number for name, number in environment.libraries.items() if name != "torch"}
    known = {
        "submitter": "repro-harness", "division": "open", "status": STATUS, "system_name": name,
        "number_of_nodes": "1", "host_processors_per_node": "", "host_processor_model_name": environment.cpu,
        "host_processor_core_count": str(environment.cores),
        "host_memory_capacity": str(gibibytes(environment.memory_bytes) or "").replace("\N{NO-BREAK SPACE}", " "),
        "host_networking": network, "host_networking_topology": "",
        "accelerators_per_node": str(min(len(gpus), choices.processes)),
        "accelerator_model_name": "; ".join(dict.fromkeys(gpus)),
        "hw_notes": f"{environment.cores} cores usable by the run; {choices.processes} processes",
        "framework": f"PyTorch {environment.libraries.get('torch', 'of unknown version')}",
        "other_software_stack": "; ".join(f"{name} {number}" for name, number in sorted(libraries.items())),
        "operating_system": environment.system,
        "sw_notes": f"{cell.label}; figures are {choices.origin}; repro {environment.repro_version}, "
                    f"suite digest {record.plan.digest}",
    }
    return {name: plain(known.get(name, "")) for name in (*known, *UNKNOWN)}
