//! Addresses and bits of registers (82599 datasheet, 8.2). The name of an array stands for its first register.

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => { $(pub const $name: u32 = $value;)* };
}

constants! {
    CTRL = 0x0_0000;
    STATUS = 0x0_0008;
    CTRL_EXT = 0x0_0018;
    ESDP = 0x0_0020;
    I2CCTL = 0x0_0028;
    FRTIMER = 0x0_0048;
    LEDCTL = 0x0_0200;

    EICR = 0x0_0800;
    EICS = 0x0_0808;
    EIAC = 0x0_0810;
    EITR = 0x0_0820;
    EITR_HIGH = 0x1_2300;
    EIMS = 0x0_0880;
    EIMC = 0x0_0888;
    EIAM = 0x0_0890;
    EITRSEL = 0x0_0894;
    GPIE = 0x0_0898;
    IVAR = 0x0_0900;
    IVAR_MISC = 0x0_0a00;
    EICS_EX = 0x0_0a90;
    EIMS_EX = 0x0_0aa0;
    EIMC_EX = 0x0_0ab0;
    EIAM_EX = 0x0_0ad0;

    // Receive queues: 64 blocks of 0x40 bytes here, and 64 at RX_QUEUES_HIGH.
    RX_QUEUES = 0x0_1000;
    RX_QUEUES_HIGH = 0x0_d000;
    RDBAL = 0x00;
    RDBAH = 0x04;
    RDLEN = 0x08;
    DCA_RXCTRL = 0x0c;
    RDH = 0x10;
    SRRCTL = 0x14;
    RDT = 0x18;
    RXDCTL = 0x28;
    RSCCTL = 0x2c;
    // Aliases of the first 16 registers of two arrays.
    SRRCTL_LOW = 0x0_2100;
    DCA_RXCTRL_LOW = 0x0_2200;

    RQSMR = 0x0_2300;
    RTRPCS = 0x0_2430;
    RDRXCTL = 0x0_2f00;
    RXCTRL = 0x0_3000;
    RTRUP2TC = 0x0_3020;
    RXPBSIZE = 0x0_3c00;
    FCCFG = 0x0_3d00;
    MHADD = 0x0_4268;
    HLREG0 = 0x0_4240;
    MSCA = 0x0_425c;
    MSRWD = 0x0_4260;
    MFLCN = 0x0_4294;
    AUTOC = 0x0_42a0;
    LINKS = 0x0_42a4;
    DMATXCTL = 0x0_4a80;

    RXCSUM = 0x0_5000;
    FCTRL = 0x0_5080;
    VLNCTRL = 0x0_5088;
    MCSTCTRL = 0x0_5090;
    ETQF = 0x0_5128;
    MTA = 0x0_5200;
    RAL_LOW = 0x0_5400;
    PSRTYPE_LOW = 0x0_5480;
    MRQC = 0x0_5818;
    RETA = 0x0_5c00;
    RSSRK = 0x0_5c80;
    VFTA = 0x0_a000;
    RAL = 0x0_a200;
    PSRTYPE = 0x0_ea00;
    ETQS = 0x0_ec00;
    UTA = 0x0_f400;

    // Transmit queues: 128 blocks of 0x40 bytes.
    TX_QUEUES = 0x0_6000;
    TDBAL = 0x00;
    TDBAH = 0x04;
    TDLEN = 0x08;
    DCA_TXCTRL = 0x0c;
    TDH = 0x10;
    TDT = 0x18;
    TXDCTL = 0x28;
    TDWBAL = 0x38;
    TDWBAH = 0x3c;
    TQSMR = 0x0_8600;
    TXPBSIZE = 0x0_cc00;

    SYSTIML = 0x0_8c0c;
    SYSTIMH = 0x0_8c10;
    TIMINCA = 0x0_8c14;

    FDIRCTRL = 0x0_ee00;
    FDIRSIPV6 = 0x0_ee0c;
    FDIRIPSA = 0x0_ee18;
    FDIRIPDA = 0x0_ee1c;
    FDIRPORT = 0x0_ee20;
    FDIRVLAN = 0x0_ee24;
    FDIRHASH = 0x0_ee28;
    FDIRCMD = 0x0_ee2c;
    FDIRFREE = 0x0_ee38;
    FDIRDIP4M = 0x0_ee3c;
    FDIRSIP4M = 0x0_ee40;
    FDIRTCPM = 0x0_ee44;
    FDIRUDPM = 0x0_ee48;
    FDIRLEN = 0x0_ee4c;
    FDIRUSTAT = 0x0_ee50;
    FDIRFSTAT = 0x0_ee54;
    FDIRMATCH = 0x0_ee58;
    FDIRMISS = 0x0_ee5c;
    FDIRHKEY = 0x0_ee68;
    FDIRSKEY = 0x0_ee6c;
    FDIRM = 0x0_ee70;

    EEC = 0x1_0010;
    EERD = 0x1_0014;
    SWSM = 0x1_0140;
    FWSM = 0x1_0148;
    GSSR = 0x1_0160;

    // Statistics, all of which are cleared by reads.
    MPC = 0x0_3fa0;
    RLEC = 0x0_4040;
    PRC64 = 0x0_405c;
    GPRC = 0x0_4074;
    BPRC = 0x0_4078;
    MPRC = 0x0_407c;
    GPTC = 0x0_4080;
    GORCL = 0x0_4088;
    GOTCL = 0x0_4090;
    RUC = 0x0_40a4;
    ROC = 0x0_40ac;
    TORL = 0x0_40c0;
    TPR = 0x0_40d0;
    TPT = 0x0_40d4;
    PTC64 = 0x0_40d8;
    MPTC = 0x0_40f0;
    BPTC = 0x0_40f4;
    LXONRXCNT = 0x0_41a4;
    LXOFFRXCNT = 0x0_41a8;
    QPRC = 0x0_1030;
    QBRC = 0x0_1034;
    QPRDC = 0x0_1430;
    QPTC = 0x0_6030;
    QBTC = 0x0_8700;
}

/// Bits of registers.
pub mod bit {
    constants! {
        CTRL_MASTER_DISABLE = 1 << 2;
        CTRL_LINK_RESET = 1 << 3;
        CTRL_RESET = 1 << 26;
        STATUS_MASTER = 1 << 19;
        ESDP_MODULE = 1 << 2;
        GPIE_AUTO_MASK = 1 << 30;
        EICR_FLOW_DIRECTOR = 1 << 16;
        EICR_LINK = 1 << 20;
        IVAR_VALID = 1 << 7;
        EITR_INTERVAL = 0xff8;
        EITR_KEEP_COUNTER = 1 << 31;
        QUEUE_ENABLE = 1 << 25;
        QUEUE_FLUSH = 1 << 26;
        RXDCTL_STRIP_VLAN = 1 << 30;
        SRRCTL_DROP = 1 << 28;
        RXCTRL_ENABLE = 1 << 0;
        HLREG0_STRIP_CRC = 1 << 1;
        HLREG0_JUMBO = 1 << 2;
        HLREG0_LOOPBACK = 1 << 15;
        MFLCN_DISCARD_PAUSE = 1 << 1;
        AUTOC_RESTART = 1 << 12;
        LINKS_UP = 1 << 30;
        DMATXCTL_ENABLE = 1 << 0;
        RXCSUM_NO_FRAGMENT_SUM = 1 << 13;
        FCTRL_MULTICAST = 1 << 8;
        FCTRL_UNICAST = 1 << 9;
        FCTRL_BROADCAST = 1 << 10;
        VLNCTRL_FILTER = 1 << 30;
        MCSTCTRL_ENABLE = 1 << 2;
        RAH_VALID = 1 << 31;
        ETQF_ENABLE = 1 << 31;
        ETQS_QUEUE = 1 << 31;
        TDWBAL_ENABLE = 1 << 0;
        SWSM_DRIVER = 1 << 0;
        MSCA_COMMAND = 1 << 30;
        EERD_START = 1 << 0;
        EERD_DONE = 1 << 1;
        FDIRCTRL_DONE = 1 << 3;
        FDIRCTRL_PERFECT = 1 << 4;
        FDIRM_VLAN_ID = 1 << 0;
        FDIRM_VLAN_PRIORITY = 1 << 1;
        FDIRM_L4_TYPE = 1 << 3;
        FDIRM_FLEX = 1 << 4;
        FDIRCMD_COMMAND = 3;
        FDIRCMD_VALID = 1 << 2;
        FDIRCMD_CLEAR = 1 << 8;
        FDIRCMD_DROP = 1 << 9;
    }
}
