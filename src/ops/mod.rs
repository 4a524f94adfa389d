//! Operations on tensors: one folder per op, one public safe function each, dispatched on the device.
