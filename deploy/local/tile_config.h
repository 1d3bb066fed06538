// Included in front of every C++ source of the engine.
//
// Some GCCs (12.2 for one) tell their optimizer that `ldtilecfg` reads 8 of the 64 bytes of a tile configuration, and so
// drop the code that writes the others (GCC bug 114098). The instruction then faults in llama.cpp's kernels for AMX.
// This overload matches a pointer to a configuration better than the compiler's own function, and reads all of it.
#if defined(__cplusplus) && defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
template <class Config> inline void _tile_loadconfig(const Config *config) {
    static_assert(sizeof(Config) == 64, "a tile configuration has 64 bytes");
    __asm__ volatile("ldtilecfg %0" : : "m"(*config));
}
#endif
