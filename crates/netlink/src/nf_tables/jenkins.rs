//! The kernel's Jenkins hash, which rules and Signpost must compute alike.

/// The kernel's `jhash` of `bytes` (`include/linux/jhash.h`). Like the kernel, this reads whole
/// blocks as numbers in the machine's byte order, and the rest with the least significant byte
/// first.
pub fn jhash(bytes: &[u8], seed: u32) -> u32 {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = 0xdead_beef_u32.wrapping_add(length).wrapping_add(seed);
    let mut state = [start; 3];
    let mut rest = bytes;
    while let Some((block, behind)) = rest.split_first_chunk::<12>()
        && !behind.is_empty()
    {
        add(&mut state, block, u32::from_ne_bytes);
        mix(&mut state);
        rest = behind;
    }
    if !rest.is_empty() {
        add(&mut state, rest, u32::from_le_bytes);
        finish(&mut state);
    }
    state[2]
}

/// Scales a 32-bit number down to one below `modulus` (`include/linux/kernel.h`).
pub fn reciprocal_scale(number: u32, modulus: u32) -> u32 {
    let scaled = (u64::from(number) * u64::from(modulus)) >> 32;
    u32::try_from(scaled).expect("it is below the modulus")
}

/// Adds up to twelve bytes; missing bytes count as zero.
fn add(state: &mut [u32; 3], bytes: &[u8], read: fn([u8; 4]) -> u32) {
    for (word, chunk) in state.iter_mut().zip(bytes.chunks(4)) {
        let mut padded = [0; 4];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = word.wrapping_add(read(padded));
    }
}

/// `__jhash_mix`.
fn mix([a, b, c]: &mut [u32; 3]) {
    *a = a.wrapping_sub(*c) ^ c.rotate_left(4);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(6);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(8);
    *b = b.wrapping_add(*a);
    *a = a.wrapping_sub(*c) ^ c.rotate_left(16);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(19);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(4);
    *b = b.wrapping_add(*a);
}

/// `__jhash_final`.
fn finish([a, b, c]: &mut [u32; 3]) {
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(14));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(11));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(25));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(16));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(4));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(14));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(24));
}

#[cfg(test)]
mod tests {
    use super::{jhash, reciprocal_scale};

    /// Test values of Bob Jenkins' lookup3, which is the same function except for its seed.
    #[test]
    fn it_is_the_function_that_others_call_lookup3() {
        assert_eq!(jhash(b"", 0), 0xdead_beef);
        assert_eq!(jhash(b"Four score and seven years ago", 0), 0x1777_0551);
        assert_eq!(jhash(b"Four score and seven years ago", 1), 0xcd62_8161);
    }

    #[test]
    fn a_scaled_number_stays_below_the_modulus() {
        assert_eq!(reciprocal_scale(u32::MAX, 1 << 30), (1 << 30) - 1);
        assert_eq!(reciprocal_scale(0, 5), 0);
    }
}
