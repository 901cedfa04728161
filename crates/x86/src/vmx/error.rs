//! VM-instruction error numbers (SDM vol. 3, 30.4).

named! { u32;
    VMCALL_IN_ROOT = 1, "VMCALL executed in VMX root operation";
    VMCLEAR_ADDRESS = 2, "VMCLEAR with invalid physical address";
    VMCLEAR_VMXON_POINTER = 3, "VMCLEAR with VMXON pointer";
    VMLAUNCH_NOT_CLEAR = 4, "VMLAUNCH with non-clear VMCS";
    VMRESUME_NOT_LAUNCHED = 5, "VMRESUME with non-launched VMCS";
    VMRESUME_AFTER_VMXOFF = 6, "VMRESUME after VMXOFF";
    ENTRY_CONTROLS = 7, "VM entry with invalid control field";
    ENTRY_HOST_STATE = 8, "VM entry with invalid host-state field";
    VMPTRLD_ADDRESS = 9, "VMPTRLD with invalid physical address";
    VMPTRLD_VMXON_POINTER = 10, "VMPTRLD with VMXON pointer";
    VMPTRLD_REVISION = 11, "VMPTRLD with incorrect VMCS revision identifier";
    UNSUPPORTED_FIELD = 12, "VMREAD or VMWRITE from or to unsupported VMCS component";
    VMWRITE_READ_ONLY = 13, "VMWRITE to read-only VMCS component";
    VMXON_IN_ROOT = 15, "VMXON executed in VMX root operation";
    ENTRY_BLOCKED_BY_MOV_SS = 26, "VM entry with events blocked by MOV SS";
    INVALIDATION_OPERAND = 28, "invalid operand to INVEPT or INVVPID";
}
